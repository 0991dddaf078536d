// Several threads over one device.
//
// A device with several queues has one transport for each thread, over a part of the queues. Which queue a packet comes
// in by is the device's to say: by its flow rules, if it has any, the right one; otherwise any. So each thread takes
// what comes, keeps what is for its own ports, and passes the rest on to the thread whose port it is:
//
//     queues of the device       receive()             mailboxes            receive()
//     0 ---------------> thread 0 --- for port 1 ---------> [ | | ] -------> thread 1
//     1 ---------------> thread 1 --- for port 0 ---------> [ | | ] -------> thread 0
//
// Where the device steers, the mailboxes stay empty. A datagram that is passed on is copied, so that each thread's
// queues have their memory back at once; a full mailbox loses it, as a full socket does. Each thread sends by its own
// queues.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "transport/transport.hpp"

namespace wiresum::transport {

/// Datagrams that wait in a mailbox.
inline constexpr std::size_t kPassedMax = 512;

/// Of n transports, each of which may hear any port of their device, as many of which the i-th serves the ports i,
/// i + n, ..., numbered 0, 1, ..., whichever heard them. One that there is alone is left as it is. Each may be driven
/// by a thread of its own; all that is underneath goes with the last.
[[nodiscard]] std::vector<std::unique_ptr<Transport>> share_out(std::vector<std::unique_ptr<Transport>> queues,
                                                                std::size_t datagram_bytes_max);

}  // namespace wiresum::transport
