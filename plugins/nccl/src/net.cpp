// NCCL's table for what it sends from point to point, and for all that CollNet does not carry: tcp.hpp.
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "device.hpp"
#include "nccl_v11.h"
#include "result.hpp"
#include "tcp.hpp"

namespace wiresum::nccl::net {
namespace {

/// The connections that are being made, by where NCCL has their handles: it calls again with the same until there is
/// one. That a handle has come from another host is why nothing is kept in it, as NCCL's own transport does.
struct Dials {
  std::mutex mutex;
  std::map<const void*, Dial> by_handle;
};

Dials& dials() {
  static auto* const all = new Dials;  // never destroyed, as in tcp.cpp
  return *all;
}

Connection& connection(void* comm) {
  require(comm != nullptr, "there is no such connection: it is NULL");
  return *static_cast<Connection*>(comm);
}

ncclResult_t init(void** context, uint64_t /*communicator*/, ncclNetCommConfig_v11_t* /*config*/,
                  ncclDebugLogger_t logger, ncclProfilerCallback_t /*profiler*/) {
  log_to(logger);
  return guarded([&] {
    *context = nullptr;
    (void)device();
  });
}

ncclResult_t listen(void* /*context*/, int index, void* handle, void** listen_comm) {
  return guarded([&] {
    require(index == 0, "there is no such network device: Wiresum has one, 0");
    auto made = std::make_unique<Listener>(device().address);
    std::memset(handle, 0, NCCL_NET_HANDLE_MAXSIZE);
    std::memcpy(handle, &made->handle(), sizeof(Handle));
    *listen_comm = made.release();
  });
}

ncclResult_t connect(void* /*context*/, int index, void* handle, void** send_comm,
                     ncclNetDeviceHandle_v11_t** /*none*/) {
  return guarded([&] {
    *send_comm = nullptr;
    require(index == 0, "there is no such network device: Wiresum has one, 0");
    Handle wanted{};
    std::memcpy(&wanted, handle, sizeof wanted);
    Dials& all = dials();
    const std::lock_guard lock(all.mutex);
    auto found = all.by_handle.find(handle);
    // One that NCCL has given up left its place to another.
    if (found != all.by_handle.end() && found->second.secret() != wanted.hello.secret) {
      all.by_handle.erase(found);
      found = all.by_handle.end();
    }
    if (found == all.by_handle.end()) found = all.by_handle.try_emplace(handle, wanted).first;
    std::unique_ptr<Connection> made;
    try {
      made = found->second.finish();
    } catch (const Refused&) {
      all.by_handle.erase(found);
      throw;
    }
    if (made == nullptr) return;
    all.by_handle.erase(found);
    *send_comm = made.release();
  });
}

ncclResult_t accept(void* listen_comm, void** recv_comm, ncclNetDeviceHandle_v11_t** /*none*/) {
  return guarded([&] {
    *recv_comm = nullptr;
    require(listen_comm != nullptr, "there is no such listener: it is NULL");
    std::unique_ptr<Connection> made = static_cast<Listener*>(listen_comm)->accept();
    *recv_comm = made.release();
  });
}

ncclResult_t isend(void* send_comm, void* data, size_t bytes, int tag, void* /*memory*/, void* /*profiler*/,
                   void** request) {
  return guarded([&] {
    *request = nullptr;
    *request = connection(send_comm).post(data, bytes, tag);
  });
}

ncclResult_t irecv(void* recv_comm, int count, void** data, size_t* bytes, int* tags, void** /*memory*/,
                   void** /*profiler*/, void** request) {
  return guarded([&] {
    *request = nullptr;
    require(count == 1, "Wiresum receives one message at a time, as its properties say");
    *request = connection(recv_comm).post(data[0], bytes[0], tags[0]);
  });
}

ncclResult_t iflush(void* /*recv_comm*/, int /*count*/, void** /*data*/, int* /*bytes*/, void** /*memory*/,
                    void** request) {
  *request = nullptr;  // what is in the host's memory is there
  return ncclSuccess;
}

ncclResult_t test(void* request, int* done, int* bytes) {
  return guarded([&] {
    *done = 0;
    require(request != nullptr, "there is no such request: it is NULL");
    auto* const tested = static_cast<Request*>(request);
    std::size_t moved = 0;
    if (!tested->connection->test(tested, moved)) return;
    *done = 1;
    if (bytes != nullptr) *bytes = as_int(moved);
  });
}

ncclResult_t close_connection(void* comm) {
  return guarded([&] { delete static_cast<Connection*>(comm); });
}

ncclResult_t close_listen(void* comm) {
  return guarded([&] { delete static_cast<Listener*>(comm); });
}

ncclResult_t finalize(void* /*context*/) { return ncclSuccess; }

}  // namespace
}  // namespace wiresum::nccl::net

extern "C" {
extern const ncclNet_v11_t ncclNetPlugin_v11;
const ncclNet_v11_t ncclNetPlugin_v11 = {
    .name = "Wiresum",
    .init = wiresum::nccl::net::init,
    .devices = wiresum::nccl::devices,
    .getProperties = wiresum::nccl::get_properties,
    .listen = wiresum::nccl::net::listen,
    .connect = wiresum::nccl::net::connect,
    .accept = wiresum::nccl::net::accept,
    .regMr = wiresum::nccl::register_memory,
    .regMrDmaBuf = nullptr,
    .deregMr = wiresum::nccl::deregister_memory,
    .isend = wiresum::nccl::net::isend,
    .irecv = wiresum::nccl::net::irecv,
    .iflush = wiresum::nccl::net::iflush,
    .test = wiresum::nccl::net::test,
    .closeSend = wiresum::nccl::net::close_connection,
    .closeRecv = wiresum::nccl::net::close_connection,
    .closeListen = wiresum::nccl::net::close_listen,
    .getDeviceMr = nullptr,
    .irecvConsumed = nullptr,
    .makeVDevice = nullptr,
    .finalize = wiresum::nccl::net::finalize,
    .setNetAttr = nullptr,
};
}
