// Steering: which packets are directed to which thread by the device, and which by software.
#include "transport/dpdk/steering.hpp"

#include <gtest/gtest.h>
#include <rte_byteorder.h>

namespace wiresum::transport::dpdk {
namespace {

TEST(Steering, AThreadHasAQueueOfItsOwnWhereThereAreEnough) {
  const QueueCounts enough = queues_for(4, 16, 4, true);
  EXPECT_EQ(enough.receive, 4);
  EXPECT_EQ(enough.send, 4);
  const QueueCounts few = queues_for(4, 3, 8, true);
  EXPECT_EQ(few.receive, 1);
  EXPECT_EQ(few.send, 4);
  const QueueCounts one = queues_for(1, 16, 16, true);
  EXPECT_EQ(one.receive, 1);
  EXPECT_EQ(one.send, 1);
}

TEST(Steering, APeerThatMaySupportFewerQueuesGetsOne) {
  const QueueCounts memif = queues_for(4, 255, 255, false);
  EXPECT_EQ(memif.receive, 1);
  EXPECT_EQ(memif.send, 1);
}

TEST(Steering, EachQueueOfEachPortBelongsToOneThread) {
  for (const unsigned threads : {1u, 2u, 3u, 16u}) {
    for (std::size_t port = 0; port < 5; ++port) {
      for (const std::uint16_t queues : {std::uint16_t{1}, static_cast<std::uint16_t>(threads)}) {
        for (std::uint16_t queue = 0; queue < queues; ++queue) {
          unsigned takers = 0;
          for (unsigned thread = 0; thread < threads; ++thread) {
            takers += takes(thread, threads, port, queue, queues) ? 1 : 0;
          }
          EXPECT_EQ(takers, 1u) << threads << " threads, port " << port << ", queue " << queue << " of " << queues;
        }
      }
    }
  }
}

TEST(Steering, PortsWithOneQueueAreAssignedToThreadsInTurn) {
  EXPECT_TRUE(takes(0, 2, 0, 0, 1));
  EXPECT_TRUE(takes(1, 2, 1, 0, 1));
  EXPECT_TRUE(takes(0, 2, 2, 0, 1));
}

TEST(Steering, ARuleIsForOneUdpPortOfOurAddressAndOneQueue) {
  const FlowRule rule(0x0A000001, 43489, 3);
  EXPECT_EQ(rule.attributes().ingress, 1u);
  const rte_flow_item* const pattern = rule.pattern();
  EXPECT_EQ(pattern[0].type, RTE_FLOW_ITEM_TYPE_ETH);
  ASSERT_EQ(pattern[1].type, RTE_FLOW_ITEM_TYPE_IPV4);
  EXPECT_EQ(static_cast<const rte_flow_item_ipv4*>(pattern[1].spec)->hdr.dst_addr, rte_cpu_to_be_32(0x0A000001));
  EXPECT_EQ(static_cast<const rte_flow_item_ipv4*>(pattern[1].mask)->hdr.dst_addr, UINT32_MAX);
  EXPECT_EQ(static_cast<const rte_flow_item_ipv4*>(pattern[1].mask)->hdr.src_addr, 0u) << "from any sender";
  ASSERT_EQ(pattern[2].type, RTE_FLOW_ITEM_TYPE_UDP);
  EXPECT_EQ(static_cast<const rte_flow_item_udp*>(pattern[2].spec)->hdr.dst_port, rte_cpu_to_be_16(43489));
  EXPECT_EQ(static_cast<const rte_flow_item_udp*>(pattern[2].mask)->hdr.dst_port, UINT16_MAX);
  EXPECT_EQ(static_cast<const rte_flow_item_udp*>(pattern[2].mask)->hdr.src_port, 0u);
  EXPECT_EQ(pattern[3].type, RTE_FLOW_ITEM_TYPE_END);
  ASSERT_EQ(rule.actions()[0].type, RTE_FLOW_ACTION_TYPE_QUEUE);
  EXPECT_EQ(static_cast<const rte_flow_action_queue*>(rule.actions()[0].conf)->index, 3);
  EXPECT_EQ(rule.actions()[1].type, RTE_FLOW_ACTION_TYPE_END);
}

}  // namespace
}  // namespace wiresum::transport::dpdk
