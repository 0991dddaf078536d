// Conversion between the protocol's endpoints (host byte order) and the socket interface's addresses.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>

#include "wire/packet.hpp"

namespace wiresum::transport {

inline sockaddr_in to_sockaddr(wire::Endpoint endpoint) noexcept {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(endpoint.port);
  address.sin_addr.s_addr = htonl(endpoint.address);
  return address;
}

inline wire::Endpoint from_sockaddr(const sockaddr_in& address) noexcept {
  return {.address = ntohl(address.sin_addr.s_addr), .port = ntohs(address.sin_port)};
}

}  // namespace wiresum::transport
