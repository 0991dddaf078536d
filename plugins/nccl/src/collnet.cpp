// NCCL's table for collectives in the network, over libwiresum: a group of NCCL is a job, and each of its nodes a
// worker.
//
// NCCL has no network of its own here, but brings the handle of each node to all others before they connect. Rank 0's
// handle names the job that they all join then; nobody listens. NCCL compares only within a node whether connecting has
// failed. So it must fail at all nodes or at none: a job is joined by all or by none, and a barrier tells each that all
// others have joined.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "device.hpp"
#include "nccl_v11.h"
#include "result.hpp"
#include "tcp.hpp"
#include "wiresum/wiresum.h"

namespace wiresum::nccl::collnet {
namespace {

constexpr Magic kHandleMagic{'w', 's', 'u', 'm', 'j', 'o', 'b', '2'};
/// NCCL has all nodes connect at the same time. Where one cannot, the others go on without the network.
constexpr double kJoinSeconds = 30;
constexpr std::size_t kPrefixBytesMax = 63;
/// Of one group; libwiresum has room for 65,536.
constexpr std::size_t kOperationsMax = 32'768;
/// In which operations end after the session was left.
constexpr double kEndSeconds = 60;

/// Rank 0's counts.
struct JobHandle {
  Magic magic;
  std::uint32_t flags;         // for wiresum_join: a program may have many communicators, and each is a job
  std::array<char, 108> name;  // ends with a NUL
};
static_assert(sizeof(JobHandle) <= NCCL_NET_HANDLE_MAXSIZE);

/// Groups that this process is in.
std::atomic<int> groups = 0;

struct Group;

/// Complete when all its operations are.
struct GroupRequest {
  GroupRequest(Group& of, std::size_t all_bytes) : group(of), bytes(all_bytes) {}
  GroupRequest(const GroupRequest&) = delete;
  GroupRequest& operator=(const GroupRequest&) = delete;

  /// Where libwiresum puts one more.
  wiresum_operation** next();

  Group& group;
  const std::size_t bytes;
  std::vector<wiresum_operation*> operations;
  bool has_failed = false;
};

/// What NCCL calls a collective communicator. It is used by one thread at a time.
struct Group {
  Group(int own_rank, int nodes) : rank(own_rank), size(nodes) { ++groups; }
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  /// nullptr: NCCL asks again when there is room.
  GroupRequest* post(std::size_t bytes, std::size_t operations);

  const int rank;
  const int size;
  wiresum_session* session = nullptr;
  std::list<GroupRequest> requests;
  std::size_t operations_in_flight = 0;
};

wiresum_operation** GroupRequest::next() {
  ++group.operations_in_flight;
  return &operations.emplace_back(nullptr);
}

GroupRequest* Group::post(std::size_t bytes, std::size_t operations) {
  if (operations_in_flight + operations > kOperationsMax) return nullptr;
  return &requests.emplace_back(*this, bytes);
}

/// After an abort, operations may be in flight. None touches its memory when the session has been left.
Group::~Group() {
  --groups;
  if (session == nullptr) return;
  (void)wiresum_leave(&session);
  for (GroupRequest& request : requests) {
    for (wiresum_operation*& operation : request.operations) {
      if (operation != nullptr) (void)wiresum_wait(&operation, kEndSeconds);
    }
  }
}

ncclResult_t result_of(int code) {
  switch (code) {
    case WIRESUM_ERROR_ARGUMENT:
    case WIRESUM_ERROR_FORKED:
      return ncclInvalidUsage;
    case WIRESUM_ERROR_JOIN:
    case WIRESUM_ERROR_WORKER_LOST:
    case WIRESUM_ERROR_SWITCH_UNREACHABLE:
    case WIRESUM_ERROR_DIVERGED:
    case WIRESUM_ERROR_COLLECTIVE_TIMEOUT:
    case WIRESUM_ERROR_CLOSED:
    case WIRESUM_ERROR_ABORTED:
      return ncclRemoteError;
    default:
      return ncclSystemError;
  }
}

void check(int code) {
  if (code != WIRESUM_OK) {
    throw Refused(result_of(code), std::string(wiresum_error_text()) + " (" + wiresum_code_name(code) + ")");
  }
}

struct Type {
  ncclDataType_t type;
  wiresum_dtype dtype;
  std::size_t bytes;
};

/// What the switch adds. Sums modulo 2^b have the same bits with a sign and without.
constexpr std::array<Type, 9> kSummed{{
    {ncclFloat32, WIRESUM_FLOAT32, 4},
    {ncclFloat16, WIRESUM_FLOAT16, 2},
    {ncclBfloat16, WIRESUM_BFLOAT16, 2},
    {ncclInt32, WIRESUM_INT32, 4},
    {ncclUint32, WIRESUM_INT32, 4},
    {ncclInt8, WIRESUM_INT8, 1},
    {ncclUint8, WIRESUM_INT8, 1},
    {ncclInt64, WIRESUM_INT64, 8},
    {ncclUint64, WIRESUM_INT64, 8},
}};

/// Null if NCCL shall take its own path. It gives averages as sums.
const Type* find_summed(ncclDataType_t type, ncclRedOp_t op) {
  const auto* const found = std::ranges::find(kSummed, type, &Type::type);
  return op == ncclSum && found != kSummed.end() ? found : nullptr;
}

const Type& summed_type(ncclDataType_t type, ncclRedOp_t op) {
  const Type* const found = find_summed(type, op);
  require(found != nullptr,
          "Wiresum has no such sum, as it has told NCCL: there are sums of fp32, fp16, bf16 and integers");
  return *found;
}

Group& group_of(void* comm) {
  require(comm != nullptr, "there is no such group: it is NULL");
  return *static_cast<Group*>(comm);
}

std::byte* bytes_of(void* memory) { return static_cast<std::byte*>(memory); }

/// The part of a window that is rank `rank`'s: NCCL numbers the bytes of all ranks one after the other.
struct Part {
  std::size_t offset = 0;  // in the window
  std::size_t bytes = 0;
};

Part part_of(int rank, std::size_t bytes_per_rank, std::size_t window_offset, std::size_t window_bytes) {
  const std::size_t begin = std::max(window_offset, static_cast<std::size_t>(rank) * bytes_per_rank);
  const std::size_t end = std::min(window_offset + window_bytes, (static_cast<std::size_t>(rank) + 1) * bytes_per_rank);
  return begin < end ? Part{.offset = begin - window_offset, .bytes = end - begin} : Part{};
}

ncclResult_t init(void** context, uint64_t /*communicator*/, ncclDebugLogger_t logger) {
  log_to(logger);
  return guarded([&] {
    *context = nullptr;
    (void)device();
  });
}

/// A name that nobody else has, or can guess: who knows it can join the job.
std::string new_job_name() {
  const char* const wish = std::getenv("WIRESUM_JOB");
  std::string name = wish == nullptr || *wish == '\0' ? "nccl" : std::string(wish).substr(0, kPrefixBytesMax);
  name += '-';
  for (const std::uint8_t byte : random_secret()) {
    name += "0123456789abcdef"[byte >> 4];
    name += "0123456789abcdef"[byte & 15];
  }
  return name;
}

ncclResult_t listen(void* /*context*/, int index, void* handle, void** listen_comm) {
  return guarded([&] {
    require(index == 0, "there is no such network device: Wiresum has one, 0");
    JobHandle made{.magic = kHandleMagic, .flags = groups == 0 ? WIRESUM_NO_QUEUE : WIRESUM_FURTHER, .name = {}};
    const std::string name = new_job_name();
    std::memcpy(made.name.data(), name.data(), std::min(name.size(), made.name.size() - 1));
    std::memset(handle, 0, NCCL_NET_HANDLE_MAXSIZE);
    std::memcpy(handle, &made, sizeof made);
    // Some address: the handle has all there is to know, and NCCL forgets listeners whose connecting failed.
    static char listener;
    *listen_comm = &listener;
  });
}

/// Every node has all handles, so that all refuse the same.
JobHandle job_of(void* const* handles, int size) {
  JobHandle job{};
  for (int node = size - 1; node >= 0; --node) {
    std::memcpy(&job, handles[node], sizeof job);
    if (job.magic != kHandleMagic || job.name.back() != '\0' || job.name.front() == '\0') {
      throw Refused(ncclInvalidUsage, "node " + std::to_string(node) + " has another plug-in for CollNet, or another " +
                                          "release of Wiresum: let NCCL_NET_PLUGIN name the same at all nodes");
    }
  }
  return job;
}

ncclResult_t connect(void** handles, int size, int rank, void* listen_comm, void** coll_comm) {
  return guarded([&] {
    *coll_comm = nullptr;
    require(listen_comm != nullptr, "nodes can be connected only after listening: the listener is NULL");
    require(rank >= 0 && rank < size, "a node's rank must be below their number");
    const JobHandle job = job_of(handles, size);
    auto group = std::make_unique<Group>(rank, size);
    check(wiresum_join(job.name.data(), rank, size, nullptr, job.flags, kJoinSeconds, &group->session));
    check(wiresum_barrier(group->session, nullptr));
    // NCCL does not limit how long a rank may compute before it calls a collective.
    check(wiresum_set_timeout(group->session, WIRESUM_FOREVER));
    inform("node " + std::to_string(rank) + " of " + std::to_string(size) + " sums in job " + job.name.data());
    *coll_comm = group.release();
  });
}

ncclResult_t reduce_support(ncclDataType_t type, ncclRedOp_t op, int* supported) {
  *supported = find_summed(type, op) != nullptr ? 1 : 0;
  return ncclSuccess;
}

ncclResult_t iallreduce(void* comm, void* source, void* destination, size_t count, ncclDataType_t type, ncclRedOp_t op,
                        void* /*memory*/, void* /*memory*/, void** request) {
  return guarded([&] {
    *request = nullptr;
    Group& group = group_of(comm);
    const Type& summed = summed_type(type, op);
    GroupRequest* const made = group.post(count * summed.bytes, 1);
    if (made == nullptr) return;
    check(wiresum_all_reduce(group.session, source, destination, count, summed.dtype, WIRESUM_SUM, made->next()));
    *request = made;
  });
}

/// The window of what all ranks give: each sends its part of it to all.
ncclResult_t iallgather(void* comm, void* source, int count, ncclNetSGE_v11_t* destinations, size_t bytes_per_rank,
                        size_t window_offset, size_t window_bytes, void* /*memory*/, void** request) {
  return guarded([&] {
    *request = nullptr;
    Group& group = group_of(comm);
    require(count == 1 && destinations->size >= window_bytes, "the destination must be one, of the window's size");
    GroupRequest* const made = group.post(window_bytes, static_cast<std::size_t>(group.size));
    if (made == nullptr) return;
    for (int root = 0; root < group.size; ++root) {
      const Part part = part_of(root, bytes_per_rank, window_offset, window_bytes);
      if (part.bytes == 0) continue;
      void* memory = bytes_of(destinations->address) + part.offset;
      if (root == group.rank) {
        std::memmove(memory, source, part.bytes);
        memory = source;
      }
      check(wiresum_broadcast(group.session, memory, part.bytes, root, made->next()));
    }
    *request = made;
  });
}

/// The window of what all ranks have of all: each gets the sum of its part of it.
ncclResult_t ireducescatter(void* comm, int count, ncclNetSGE_v11_t* sources, void* destination, size_t bytes_per_rank,
                            size_t window_offset, size_t window_bytes, ncclDataType_t type, ncclRedOp_t op,
                            void* /*memory*/, void** request) {
  return guarded([&] {
    *request = nullptr;
    Group& group = group_of(comm);
    const Type& summed = summed_type(type, op);
    require(count == 1 && sources->size >= window_bytes, "the source must be one, of the window's size");
    GroupRequest* const made = group.post(window_bytes, static_cast<std::size_t>(group.size));
    if (made == nullptr) return;
    for (int root = 0; root < group.size; ++root) {
      const Part part = part_of(root, bytes_per_rank, window_offset, window_bytes);
      require(part.bytes % summed.bytes == 0, "the window must not cut an element");
      if (part.bytes == 0) continue;
      check(wiresum_reduce(group.session, bytes_of(sources->address) + part.offset, destination,
                           part.bytes / summed.bytes, summed.dtype, WIRESUM_SUM, root, made->next()));
    }
    *request = made;
  });
}

ncclResult_t iflush(void* /*comm*/, void* /*data*/, int /*bytes*/, void* /*memory*/, void** request) {
  *request = nullptr;  // what is in the host's memory is there
  return ncclSuccess;
}

ncclResult_t test(void* request, int* done, int* bytes) {
  return guarded([&] {
    *done = 0;
    require(request != nullptr, "there is no such request: it is NULL");
    auto& tested = *static_cast<GroupRequest*>(request);
    Group& group = tested.group;
    require(!tested.has_failed, "the request has failed before");
    for (wiresum_operation*& operation : tested.operations) {
      if (operation == nullptr) continue;
      int is_complete = 0;
      const int code = wiresum_test(&operation, &is_complete);
      tested.has_failed = code != WIRESUM_OK;
      check(code);
      if (is_complete == 0) return;
      --group.operations_in_flight;
    }
    *done = 1;
    if (bytes != nullptr) *bytes = as_int(tested.bytes);
    group.requests.remove_if([&tested](const GroupRequest& one) { return &one == &tested; });
  });
}

ncclResult_t close_group(void* comm) {
  return guarded([&] { delete static_cast<Group*>(comm); });
}

ncclResult_t close_listen(void* /*listen_comm*/) { return ncclSuccess; }

ncclResult_t finalize(void* /*context*/) { return ncclSuccess; }

}  // namespace
}  // namespace wiresum::nccl::collnet

extern "C" {
extern const ncclCollNet_v11_t ncclCollNetPlugin_v11;
const ncclCollNet_v11_t ncclCollNetPlugin_v11 = {
    .name = "Wiresum",
    .init = wiresum::nccl::collnet::init,
    .devices = wiresum::nccl::devices,
    .getProperties = wiresum::nccl::get_properties,
    .listen = wiresum::nccl::collnet::listen,
    .connect = wiresum::nccl::collnet::connect,
    .reduceSupport = wiresum::nccl::collnet::reduce_support,
    .regMr = wiresum::nccl::register_memory,
    .regMrDmaBuf = nullptr,
    .deregMr = wiresum::nccl::deregister_memory,
    .iallreduce = wiresum::nccl::collnet::iallreduce,
    // NCCL 2.30 takes it for granted that a table of version 11 has these two.
    .iallgather = wiresum::nccl::collnet::iallgather,
    .ireducescatter = wiresum::nccl::collnet::ireducescatter,
    .iflush = wiresum::nccl::collnet::iflush,
    .test = wiresum::nccl::collnet::test,
    .closeColl = wiresum::nccl::collnet::close_group,
    .closeListen = wiresum::nccl::collnet::close_listen,
    .makeVDevice = nullptr,
    .finalize = wiresum::nccl::collnet::finalize,
};
}
