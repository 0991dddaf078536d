// The cost of numerics on one core, compared with memcpy.
//
// Every row streams one large tensor through a ring of frames as the engine does: chunk c goes into (or comes from)
// frame c mod 128, whose payload follows a header. The yardstick is a memcpy of the same bytes to or from the same
// frames ("memcpy to frames", "memcpy from frames"), which no sender can avoid; a memcpy of the whole tensor is shown
// beside it. Compressed gradients (stochastic.hpp) go to an array of words, which is then summed as int32; there the
// yardstick is the memcpy of the whole tensor. Rates are bytes of tensor per second of this thread's CPU time.
// Repetitions of all rows are interleaved, so that disturbances hit all rows alike, and the median is reported. A
// scan's rate is also given relative to the row without the scan ("of dense"), as the median of the ratios of
// neighbouring runs.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "numeric/codec.hpp"
#include "numeric/kernels.hpp"
#include "numeric/stochastic.hpp"
#include "wire/constants.hpp"

namespace {

using namespace wiresum::numeric;
namespace wire = wiresum::wire;

constexpr std::size_t kWords = 360;
constexpr std::size_t kPayloadBytes = wire::kWordBytes * kWords;
constexpr std::size_t kFrameBytes = wire::kHeaderBytes + kPayloadBytes;
constexpr std::size_t kFrames = 128;
constexpr unsigned kWorkers = 8;
constexpr std::uint8_t kLaneWidths[] = {32, 16, 8};

/// Frames as the transport has them: back to back, so that the kernel can cut one buffer into datagrams.
struct Ring {
  std::vector<std::byte> bytes = std::vector<std::byte>(kFrames * kFrameBytes);
  std::byte* payload(std::size_t chunk) { return bytes.data() + (chunk % kFrames) * kFrameBytes + wire::kHeaderBytes; }
};

struct Bench {
  std::size_t tensor_bytes;
  std::vector<std::byte> tensor;       // fp32
  std::vector<std::byte> half_tensor;  // normal numbers as fp16 and as bf16
  std::vector<std::byte> result;
  std::vector<std::int32_t> integers;  // an element each
  std::vector<std::uint32_t> words;
  std::vector<BlockScan> scans;  // enough for the smallest blocks
  Ring ring;

  explicit Bench(std::size_t bytes)
      : tensor_bytes(bytes),
        tensor(bytes),
        half_tensor(bytes),
        result(bytes),
        integers(bytes / 4),
        words(bytes / 4 + 1),
        scans(bytes / kPayloadBytes + 1) {
    std::mt19937 random(1);
    std::normal_distribution<float> gradient(0.0F, 0.01F);
    for (std::size_t at = 0; at + 4 <= bytes; at += 4) {
      const float value = gradient(random);
      std::memcpy(tensor.data() + at, &value, 4);
      const auto halves = static_cast<std::uint32_t>(0x30003000U | (random() & 0x8FFF8FFFU));
      std::memcpy(half_tensor.data() + at, &halves, 4);
    }
  }
  const std::byte* source(Dtype dtype) const { return element_bytes(dtype) == 4 ? tensor.data() : half_tensor.data(); }
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// A measurement, which streams the tensor once.
struct Row {
  std::string operation;
  std::string instruction_set;
  Format format;
  std::string yardstick;  // the row that this one is compared with
  std::function<void()> stream;
  std::vector<double> seconds;

  double median_seconds() const { return median(seconds); }
};

constexpr const char* kToFrames = "memcpy to frames";
constexpr const char* kFromFrames = "memcpy from frames";
constexpr const char* kPlain = "memcpy";
constexpr const char* kDense = "look ahead + quantise + pack";
constexpr const char* kScan = "scan + quantise + pack";
constexpr const char* kDtypeNames[] = {"f32", "f16", "bf16", "i32", "raw"};

/// Counts as a read of the memory, so that the compiler cannot drop the stores to it.
void keep(const void* data) { asm volatile("" : : "r"(data) : "memory"); }

/// Calls `work(chunk, byte offset, bytes)` for every chunk of `chunk_bytes`.
template <class Work>
void for_chunks(std::size_t tensor_bytes, std::size_t chunk_bytes, const Work& work) {
  std::size_t chunk = 0;
  for (std::size_t at = 0; at < tensor_bytes; at += chunk_bytes, ++chunk) {
    work(chunk, at, std::min(chunk_bytes, tensor_bytes - at));
  }
}

void add_memcpy_rows(Bench& bench, std::vector<Row>& rows) {
  rows.push_back({kPlain,
                  "libc",
                  {},
                  kPlain,
                  [&bench] {
                    std::memcpy(bench.result.data(), bench.tensor.data(), bench.tensor_bytes);
                    keep(bench.result.data());
                  },
                  {}});
  rows.push_back({kToFrames,
                  "libc",
                  {},
                  kPlain,
                  [&bench] {
                    for_chunks(bench.tensor_bytes, kPayloadBytes,
                               [&](std::size_t chunk, std::size_t at, std::size_t n) {
                                 std::memcpy(bench.ring.payload(chunk), bench.tensor.data() + at, n);
                                 keep(bench.ring.payload(chunk));
                               });
                  },
                  {}});
  rows.push_back({kFromFrames,
                  "libc",
                  {},
                  kPlain,
                  [&bench] {
                    for_chunks(bench.tensor_bytes, kPayloadBytes,
                               [&](std::size_t chunk, std::size_t at, std::size_t n) {
                                 std::memcpy(bench.result.data() + at, bench.ring.payload(chunk), n);
                                 keep(bench.result.data() + at);
                               });
                  },
                  {}});
}

/// The elements, without a division for every chunk.
std::size_t elements_in(std::size_t bytes, Dtype dtype) { return element_bytes(dtype) == 4 ? bytes / 4 : bytes / 2; }

void add_codec_rows(Bench& bench, const Kernels& kernels, Format format, std::vector<Row>& rows) {
  const std::size_t chunk_bytes = kWords * elements_per_word(format) * element_bytes(format.dtype);
  const Scale scale = block_scale(kWorkers, 122, format.bits, 1.0F);
  const auto quantise_chunk = [&bench, &kernels, format, scale](std::size_t chunk, std::size_t at, std::size_t n) {
    quantise(format, scale, bench.source(format.dtype) + at, elements_in(n, format.dtype), bench.ring.payload(chunk),
             kWords, kernels);
    keep(bench.ring.payload(chunk));
  };
  rows.push_back(
      {"quantise + pack",
       kernels.name,
       format,
       kToFrames,
       [&bench, chunk_bytes, quantise_chunk] { for_chunks(bench.tensor_bytes, chunk_bytes, quantise_chunk); },
       {}});
  const auto look_ahead_and_quantise = [&bench, &kernels, format, chunk_bytes, quantise_chunk] {
    // When a slot's chunk leaves, the slot's next chunk is scanned.
    const std::size_t ahead = kFrames * chunk_bytes;
    unsigned largest = 0;
    for_chunks(bench.tensor_bytes, chunk_bytes, [&](std::size_t chunk, std::size_t at, std::size_t n) {
      if (at + ahead < bench.tensor_bytes) {
        const std::size_t next = std::min(chunk_bytes, bench.tensor_bytes - at - ahead);
        largest |= exponents_of(format.dtype, bench.source(format.dtype) + at + ahead, elements_in(next, format.dtype),
                                kernels)
                       .largest;
      }
      quantise_chunk(chunk, at, n);
    });
    keep(&largest);
  };
  rows.push_back({kDense, kernels.name, format, kToFrames, look_ahead_and_quantise, {}});
  rows.push_back({kScan,
                  kernels.name,
                  format,
                  kToFrames,
                  [&bench, &kernels, format, look_ahead_and_quantise] {
                    // Scans the whole tensor before its first block leaves, as a sparse all-reduce does.
                    scan_blocks(format.dtype, bench.source(format.dtype), elements_in(bench.tensor_bytes, format.dtype),
                                kWords * elements_per_word(format), bench.scans.data(), kernels);
                    keep(bench.scans.data());
                    look_ahead_and_quantise();
                  },
                  {}});
  rows.push_back({"unpack + dequantise",
                  kernels.name,
                  format,
                  kFromFrames,
                  [&bench, &kernels, format, scale, chunk_bytes] {
                    for_chunks(bench.tensor_bytes, chunk_bytes, [&](std::size_t chunk, std::size_t at, std::size_t n) {
                      dequantise(format, scale, bench.ring.payload(chunk), kWords, bench.result.data() + at,
                                 elements_in(n, format.dtype), kernels);
                      keep(bench.result.data() + at);
                    });
                  },
                  {}});
}

/// The switch's work: adds payloads into cells that stay in the cache. The rate counts bytes of payload.
void add_accumulate_row(Bench& bench, const Kernels& kernels, std::vector<Row>& rows) {
  rows.push_back({"accumulate",
                  kernels.name,
                  {},
                  kToFrames,
                  [&bench, &kernels] {
                    for_chunks(bench.tensor_bytes, kPayloadBytes,
                               [&](std::size_t chunk, std::size_t at, std::size_t n) {
                                 kernels.accumulate(bench.ring.payload(chunk), bench.tensor.data() + at, n / 4);
                                 keep(bench.ring.payload(chunk));
                               });
                  },
                  {}});
}

/// The work of a compressor that sends integers (wiresum.compress): rounds the tensor stochastically and packs the
/// integers into lanes; and unpacks the sum of the lanes.
void add_compression_rows(Bench& bench, const Kernels& kernels, std::uint8_t bits, std::vector<Row>& rows) {
  const std::size_t count = bench.tensor_bytes / 4;
  const std::size_t words = count * bits / 32 + 1;
  const Format format = {Dtype::kF32, Scaling::kFixed, bits};
  const auto limit = static_cast<std::int32_t>((0x7FFFFFFFU >> (32 - bits)) / kWorkers);
  const double inverse = limit / 0.05;  // five standard deviations of these elements
  rows.push_back({"compress + pack",
                  kernels.name,
                  format,
                  kPlain,
                  [&bench, &kernels, bits, count, words, limit, inverse] {
                    const auto* source = reinterpret_cast<const float*>(bench.tensor.data());
                    kernels.float_gradients.round({{1, 2}, 3, 4, 0}, 0, source, count, inverse, limit,
                                                  bench.integers.data());
                    if (bits != 32) {
                      pack_lanes(bits, bench.integers.data(), count, bench.words.data(), words, kernels);
                    }
                    keep(bench.integers.data());
                    keep(bench.words.data());
                  },
                  {}});
  rows.push_back({"unpack + decompress",
                  kernels.name,
                  format,
                  kPlain,
                  [&bench, &kernels, bits, count, words, inverse] {
                    if (bits != 32) {
                      unpack_lanes(bits, bench.words.data(), words, bench.integers.data(), count, kernels);
                    }
                    auto* result = reinterpret_cast<float*>(bench.result.data());
                    kernels.float_gradients.scale(bench.integers.data(), count, 1 / (inverse * kWorkers), result);
                    keep(result);
                  },
                  {}});
}

/// CPU time of this thread, which excludes time that other programs get.
double cpu_seconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void run(std::vector<Row>& rows, int repetitions) {
  for (Row& row : rows) row.stream();  // warm up: pages, caches, clock
  for (int repetition = 0; repetition < repetitions; ++repetition) {
    for (Row& row : rows) {
      const double begin = cpu_seconds();
      row.stream();
      row.seconds.push_back(cpu_seconds() - begin);
    }
  }
}

const Row& row_named(const std::vector<Row>& rows, const std::string& operation) {
  return *std::find_if(rows.begin(), rows.end(), [&](const Row& row) { return row.operation == operation; });
}

bool is_memcpy(const Row& row) { return row.instruction_set == "libc"; }
/// A row's format as text; accumulate and memcpy have none.
std::string format_name(const Row& row) {
  if (is_memcpy(row) || row.operation == "accumulate") return "-";
  return std::string(kDtypeNames[static_cast<std::size_t>(row.format.dtype)]) + "/" + std::to_string(row.format.bits);
}

/// A scan's rate relative to the row without the scan of the same format and instruction set; nothing for other rows.
std::optional<double> ratio_to_dense(const std::vector<Row>& rows, const Row& row) {
  if (row.operation != kScan) return std::nullopt;
  const Row& dense = *std::find_if(rows.begin(), rows.end(), [&](const Row& other) {
    return other.operation == kDense && other.instruction_set == row.instruction_set &&
           format_name(other) == format_name(row);
  });
  std::vector<double> ratios(row.seconds.size());
  std::transform(dense.seconds.begin(), dense.seconds.end(), row.seconds.begin(), ratios.begin(), std::divides<>());
  return median(std::move(ratios));
}

void print_table(const std::vector<Row>& rows, std::size_t tensor_bytes) {
  std::printf("%-30s %-8s %-8s %9s %16s %14s %9s\n", "operation", "set", "format", "GB/s", "of frame memcpy",
              "of memcpy", "of dense");
  const double plain = row_named(rows, kPlain).median_seconds();
  for (const Row& row : rows) {
    const double seconds = row.median_seconds();
    const double yardstick = row_named(rows, row.yardstick).median_seconds();
    std::printf("%-30s %-8s %-8s %9.2f %16.2f %14.2f", row.operation.c_str(), row.instruction_set.c_str(),
                format_name(row).c_str(), static_cast<double>(tensor_bytes) / seconds / 1e9, yardstick / seconds,
                plain / seconds);
    const std::optional<double> dense = ratio_to_dense(rows, row);
    if (dense) std::printf(" %9.3f", *dense);
    std::printf("\n");
  }
}

bool write_json(const std::vector<Row>& rows, std::size_t tensor_bytes, const char* path) {
  std::FILE* const file = std::fopen(path, "w");
  if (file == nullptr) return false;
  const double plain = row_named(rows, kPlain).median_seconds();
  std::fprintf(file, "[\n");
  for (const Row& row : rows) {
    const double seconds = row.median_seconds();
    std::fprintf(file,
                 "  {\"operation\": \"%s\", \"instruction_set\": \"%s\", \"format\": \"%s\", \"bytes\": %zu, "
                 "\"seconds_median\": %.9f, \"ratio_to_frame_memcpy\": %.4f, \"ratio_to_memcpy\": %.4f, ",
                 row.operation.c_str(), row.instruction_set.c_str(), format_name(row).c_str(), tensor_bytes, seconds,
                 row_named(rows, row.yardstick).median_seconds() / seconds, plain / seconds);
    const std::optional<double> dense = ratio_to_dense(rows, row);
    if (dense) std::fprintf(file, "\"ratio_to_dense\": %.4f, ", *dense);
    std::fprintf(file, "\"seconds\": [");
    for (std::size_t i = 0; i < row.seconds.size(); ++i) {
      std::fprintf(file, "%s%.9f", i == 0 ? "" : ", ", row.seconds[i]);
    }
    std::fprintf(file, "]}%s\n", &row == &rows.back() ? "" : ",");
  }
  std::fprintf(file, "]\n");
  return std::fclose(file) == 0;
}

int usage(const char* program) {
  std::fprintf(stderr, "usage: %s [--megabytes 1..4096] [--repetitions 1..1000] [--json FILE]\n", program);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  long megabytes = 64;
  long repetitions = 9;
  const char* json = nullptr;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view option = argv[i];
    if (i + 1 >= argc) return usage(argv[0]);
    if (option == "--megabytes") {
      megabytes = std::strtol(argv[i + 1], nullptr, 10);
    } else if (option == "--repetitions") {
      repetitions = std::strtol(argv[i + 1], nullptr, 10);
    } else if (option == "--json") {
      json = argv[i + 1];
    } else {
      return usage(argv[0]);
    }
  }
  if (megabytes < 1 || megabytes > 4096 || repetitions < 1 || repetitions > 1000) return usage(argv[0]);

  set_default_float_environment();
  Bench bench(static_cast<std::size_t>(megabytes) * 1'000'000);
  std::vector<Row> rows;
  add_memcpy_rows(bench, rows);
  const Kernels* tables[kKernelTablesMax];
  const std::size_t table_count = supported_kernels(tables);
  for (std::size_t i = 0; i < table_count; ++i) {
    for (const std::uint8_t bits : kLaneWidths) {
      add_codec_rows(bench, *tables[i], {Dtype::kF32, Scaling::kBlockExponent, bits}, rows);
    }
    for (const Dtype dtype : {Dtype::kF16, Dtype::kBF16}) {
      add_codec_rows(bench, *tables[i], {dtype, Scaling::kBlockExponent, 16}, rows);
    }
    add_accumulate_row(bench, *tables[i], rows);
    for (const std::uint8_t bits : kLaneWidths) add_compression_rows(bench, *tables[i], bits, rows);
  }
  run(rows, static_cast<int>(repetitions));
  std::printf("%ld MB, %zu-byte payloads in %zu frames, in use: %s\n", megabytes, kPayloadBytes, kFrames,
              instruction_set());
  print_table(rows, bench.tensor_bytes);
  if (json != nullptr && !write_json(rows, bench.tensor_bytes, json)) {
    std::fprintf(stderr, "cannot write %s: check that its folder exists and is writable\n", json);
    return 1;
  }
  return 0;
}
