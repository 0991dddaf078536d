#include "transport/moderation.hpp"

#include <gtest/gtest.h>

namespace wiresum::transport {
namespace {

constexpr std::int64_t kMicrosecond = 1000;
constexpr std::int64_t kMillisecond = 1'000'000;
constexpr std::size_t kWorth = 16;

/// A thread that receives a datagram every `gap_ns`, under a virtual clock.
class Stream {
 public:
  Stream(WakeModerator& moderator, std::int64_t gap_ns) : moderator_(moderator), gap_ns_(gap_ns) {}

  /// Wakes for single datagrams for some time, so that the rate is known.
  void run(std::int64_t for_ns) {
    for (const std::int64_t end_ns = now_ns + for_ns; now_ns < end_ns;) {
      now_ns += gap_ns_;
      moderator_.on_datagrams(now_ns, 1, ++messages_);
    }
  }
  /// Receives trains of so many datagrams at the same rate.
  void run_trains(std::int64_t for_ns, std::size_t train) {
    for (const std::int64_t end_ns = now_ns + for_ns; now_ns < end_ns;) {
      now_ns += gap_ns_ * static_cast<std::int64_t>(train);
      moderator_.on_datagrams(now_ns, train, ++messages_);
    }
  }
  [[nodiscard]] std::int64_t nap(std::size_t worth = kWorth) { return moderator_.nap_ns(now_ns, worth); }
  /// Sleeps for a nap, during which `count` datagrams arrive.
  void sleep(std::int64_t nap_ns, std::size_t count) {
    now_ns += nap_ns;
    messages_ += count;
    moderator_.on_datagrams(now_ns, count, messages_);
  }

  std::int64_t now_ns = kMillisecond;

 private:
  WakeModerator& moderator_;
  std::int64_t gap_ns_;
  std::uint64_t messages_ = 0;
};

TEST(WakeModerator, AThreadThatHasSeenNothingWakesForTheFirstDatagram) {
  WakeModerator moderator(kMillisecond, 4 * kMillisecond);
  EXPECT_EQ(moderator.nap_ns(5 * kMillisecond, kWorth), 0);
}

TEST(WakeModerator, ASteadyStreamGetsANapForAsManyDatagramsAsAreWorthOne) {
  WakeModerator moderator(kMillisecond, 4 * kMillisecond);
  Stream stream(moderator, 10 * kMicrosecond);
  stream.run(20 * kMillisecond);
  EXPECT_NEAR(static_cast<double>(stream.nap()), 160e3, 20e3);
}

TEST(WakeModerator, ANapLastsUntilEnoughDatagramsHaveArrivedWithinItsBounds) {
  struct {
    const char* what;
    std::int64_t gap_ns;
    std::size_t worth;
    std::int64_t nap_ns;
  } const kCases[] = {
      {"a fast stream, 1 Gbit/s: its bound", 12 * kMicrosecond, 1000, kMillisecond},
      {"a slow stream: until 32 have come", 100 * kMicrosecond, 1000, 32 * 100 * kMicrosecond},
      {"a slower one: the bound of slow streams", 200 * kMicrosecond, 1000, 4 * kMillisecond},
      {"no more than are worth it", 100 * kMicrosecond, 16, 16 * 100 * kMicrosecond},
      {"too slow a stream: no nap", 300 * kMicrosecond, 1000, 0},
      {"too little in flight: no nap", 10 * kMicrosecond, 3, 0},
  };
  for (const auto& [what, gap_ns, worth, nap_ns] : kCases) {
    WakeModerator moderator(kMillisecond, 4 * kMillisecond);
    Stream stream(moderator, gap_ns);
    stream.run(20 * kMillisecond);
    EXPECT_EQ(stream.nap(worth), nap_ns) << what;
  }
}

TEST(WakeModerator, AStreamIsSteadyThoughNapsOfItsPeersMakeItBursty) {
  WakeModerator moderator(kMillisecond, 4 * kMillisecond);
  Stream stream(moderator, 50 * kMicrosecond);
  for (int i = 0; i < 50; ++i) {
    stream.run(kMillisecond);
    if (i > 10) {
      ASSERT_GT(stream.nap(), 0) << i;
    }
    stream.now_ns += 2 * kMillisecond;  // nothing arrives
  }
}

TEST(WakeModerator, TrainsGetNoNapSinceOneWakeUpBringsManyDatagrams) {
  WakeModerator moderator(kMillisecond, 4 * kMillisecond);
  Stream stream(moderator, 3 * kMicrosecond);
  stream.run_trains(20 * kMillisecond, 40);
  EXPECT_EQ(stream.nap(), 0);
  stream.run(20 * kMillisecond);
  EXPECT_GT(stream.nap(), 0) << "single datagrams after the trains";
}

TEST(WakeModerator, NapsGoOnWhileTheyBringAsManyDatagramsAsExpected) {
  WakeModerator moderator(kMillisecond, 4 * kMillisecond);
  Stream stream(moderator, 10 * kMicrosecond);
  stream.run(20 * kMillisecond);
  for (int i = 0; i < 100; ++i) {
    const std::int64_t nap_ns = stream.nap();
    ASSERT_GT(nap_ns, 0) << i;
    stream.sleep(nap_ns, static_cast<std::size_t>(nap_ns / (10 * kMicrosecond)));
  }
}

TEST(WakeModerator, ARequestResponseExchangeIsDelayedByFewNaps) {
  WakeModerator moderator(kMillisecond, 4 * kMillisecond);
  Stream stream(moderator, 50 * kMicrosecond);
  std::int64_t napped_ns = 0;
  const std::int64_t begin_ns = stream.now_ns;
  while (stream.now_ns < begin_ns + 1000 * kMillisecond) {
    stream.run(50 * kMicrosecond);  // a request comes and is answered
    if (const std::int64_t nap_ns = stream.nap(); nap_ns > 0) {
      napped_ns += nap_ns;
      stream.sleep(nap_ns, 1);  // the peer waits for this thread, so only its one request arrives
    }
  }
  EXPECT_GT(napped_ns, 0) << "the stream looked steady, so naps must have been tried";
  EXPECT_LT(napped_ns, 20 * kMillisecond) << "in a second";
}

TEST(WakeModerator, AfterAPauseTheOldRateIsForgotten) {
  WakeModerator moderator(kMillisecond, 4 * kMillisecond);
  Stream stream(moderator, 10 * kMicrosecond);
  stream.run(20 * kMillisecond);
  stream.now_ns += 100 * kMillisecond;
  moderator.on_datagrams(stream.now_ns, 1, 1000);
  EXPECT_EQ(stream.nap(), 0);
}

}  // namespace
}  // namespace wiresum::transport
