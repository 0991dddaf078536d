// How the ranks of a job on one host come to share a leaf.
//
// The first of them makes it, and listens at a local socket with a name that only they can know: the service that
// granted the job drew it at random, for this host. Each other rank calls there, says a token drawn with the name, and
// is given the descriptors of its channels. Nothing is left in any file system, whoever is killed when.
//
// Others on the machine can see the name once somebody listens at it, but then it is taken; and who calls without the
// token is given nothing.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "leaf/leaf.hpp"
#include "transport/transport.hpp"

namespace wiresum::leaf {

/// A rank's position among the ranks of its job on its host.
struct Place {
  std::vector<std::uint16_t> ranks;  // the host's ranks of the job, in order
  std::uint8_t index = 0;            // this rank's index in `ranks`
  std::string secret;                // kSecretBytes that only this host's ranks know

  [[nodiscard]] bool is_shared() const noexcept { return ranks.size() > 1; }
};

inline constexpr std::size_t kSecretBytes = 32;

/// Expected ranks did not come, or are not genuine. The text says which ranks, and what to look at.
class MeetingError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// When to give up, and whether to give up before.
struct Patience {
  std::chrono::milliseconds most{30'000};
  std::function<bool()> is_over = [] { return false; };
};

using Transports = std::vector<std::unique_ptr<transport::Transport>>;

/// The first rank gives the others the links to these leaves, one leaf for each of the job's threads, in order. Returns
/// when all have them. Throws MeetingError, std::system_error.
void share(const Place& place, std::vector<std::unique_ptr<Leaf>>& leaves, const Patience& patience);

/// Another rank gets its transports to the leaf's threads. Throws MeetingError, std::system_error.
[[nodiscard]] Transports reach(const Place& place, unsigned threads, std::size_t packet_bytes_max,
                               std::size_t results_bytes, const Patience& patience);

}  // namespace wiresum::leaf
