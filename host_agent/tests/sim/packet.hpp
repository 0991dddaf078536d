// Packets of the simulated network. All copies of a packet share one buffer: a RESULT for a thousand workers is in
// memory once.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

namespace wiresum::sim {

class PacketPool;

/// A packet under way, or received. Its bytes do not change any more; each copy may be marked on its way (ECN).
class Packet {
 public:
  Packet() = default;
  Packet(const Packet& other) noexcept : buffer_(other.buffer_), marked_(other.marked_) {
    if (buffer_ != nullptr) ++buffer_->holders;
  }
  Packet(Packet&& other) noexcept : buffer_(std::exchange(other.buffer_, nullptr)), marked_(other.marked_) {}
  Packet& operator=(Packet other) noexcept {
    std::swap(buffer_, other.buffer_);
    marked_ = other.marked_;
    return *this;
  }
  inline ~Packet();

  [[nodiscard]] std::size_t size() const noexcept { return buffer_->bytes; }
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {data_of(buffer_), buffer_->bytes}; }
  [[nodiscard]] bool marked() const noexcept { return marked_; }
  void mark() noexcept { marked_ = true; }

 private:
  friend class PacketPool;
  /// The bytes follow it.
  struct alignas(std::max_align_t) Buffer {
    PacketPool* pool = nullptr;
    std::uint32_t bytes = 0;
    std::uint32_t holders = 0;
  };
  static std::byte* data_of(Buffer* buffer) noexcept { return reinterpret_cast<std::byte*>(buffer + 1); }
  explicit Packet(Buffer* buffer) noexcept : buffer_(buffer) { ++buffer_->holders; }

  Buffer* buffer_ = nullptr;
  bool marked_ = false;
};

/// Where packets come from. It must outlive them.
class PacketPool {
 public:
  /// Packets have at most so many bytes.
  explicit PacketPool(std::size_t bytes_max) : bytes_max_(bytes_max) {}

  /// A packet whose bytes `write(std::byte*)` writes; it returns how many.
  template <class Write>
  [[nodiscard]] Packet make(const Write& write) {
    if (free_.empty()) {
      buffers_.push_back(std::make_unique_for_overwrite<std::byte[]>(sizeof(Packet::Buffer) + bytes_max_));
      free_.push_back(new (buffers_.back().get()) Packet::Buffer{.pool = this});
    }
    Packet::Buffer* const buffer = free_.back();
    buffer->bytes = static_cast<std::uint32_t>(write(Packet::data_of(buffer)));
    assert(buffer->bytes <= bytes_max_);
    free_.pop_back();
    return Packet(buffer);
  }
  [[nodiscard]] Packet copy(std::span<const std::byte> bytes) {
    return make([&](std::byte* data) {
      std::memcpy(data, bytes.data(), bytes.size());
      return bytes.size();
    });
  }

  /// The most packets, copies not counted, that there were at a time.
  [[nodiscard]] std::size_t packets_max() const noexcept { return buffers_.size(); }

 private:
  friend class Packet;

  std::size_t bytes_max_;
  std::vector<std::unique_ptr<std::byte[]>> buffers_;
  std::vector<Packet::Buffer*> free_;
};

Packet::~Packet() {
  if (buffer_ != nullptr && --buffer_->holders == 0) buffer_->pool->free_.push_back(buffer_);
}

}  // namespace wiresum::sim
