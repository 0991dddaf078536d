// Several threads over one device.
//
// A device with several queues has one transport for each thread, over a part of the queues. The device decides which
// queue a packet comes in by: the right one if it has flow rules, otherwise any. So each thread takes what comes, keeps
// what is for its own ports, and passes the rest on to the thread whose port it is:
//
//     queues of the device       receive()             mailboxes            receive()
//     0 ---------------> thread 0 --- for port 1 ---------> [ | | ] -------> thread 1
//     1 ---------------> thread 1 --- for port 0 ---------> [ | | ] -------> thread 0
//
// Where the device steers, the mailboxes stay empty. A datagram that is passed on is copied, so that each thread's
// queues get their memory back at once; a full mailbox drops it, as a full socket does. Each thread sends by its own
// queues.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "transport/transport.hpp"

namespace wiresum::transport {

/// The most datagrams that wait in a mailbox.
inline constexpr std::size_t kPassedMax = 512;

/// Makes n transports, one for each thread, from n whose devices may receive for any port. The i-th serves the ports i,
/// i + n, ..., numbered 0, 1, ..., whichever of them receives the packets. A single one is returned unchanged. Each may
/// be driven by a thread of its own; what they have in common is destroyed with the last.
[[nodiscard]] std::vector<std::unique_ptr<Transport>> thread_transports(std::vector<std::unique_ptr<Transport>> queues,
                                                                        std::size_t datagram_bytes_max);

}  // namespace wiresum::transport
