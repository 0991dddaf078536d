// The life of a session over the real software switch, with a scripted membership.
#include "session/session.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "patience.hpp"
#include "server.hpp"

namespace wiresum::session {
namespace {

using Strings = std::vector<std::string>;

constexpr std::uint32_t kLoopback = 0x7F000001;
constexpr std::uint16_t kJob = 3;
constexpr std::uint16_t kLanes = 64;
constexpr std::uint32_t kSlots = 64;

/// The test's orders to a membership, and the session's calls of it.
struct Script {
  Fields joined{};  // replace fields of the real grant
  bool admitted = true;
  std::function<void(Session&)> on_attend{};

  dataplane::JobEntry entry{.job = kJob,
                            .key = 7,
                            .workers = 1,
                            .threads = 1,
                            .lanes = kLanes,
                            .slot_base = 0,
                            .slots = kSlots,
                            .endpoints = {}};
  soft_switch::SwitchServer* at = nullptr;  // the membership's

  /// The job's place, in Python's words.
  [[nodiscard]] Line place() const {
    return {.word = "aggregator",
            .fields = {{"job", std::to_string(entry.job)},
                       {"key", std::to_string(entry.key)},
                       {"worker", "0"},
                       {"workers", "1"},
                       {"lanes", std::to_string(kLanes)},
                       {"check_word", "0"},
                       {"slots", std::to_string(kSlots)},
                       {"threads", "1"},
                       {"switch", "a:1"},
                       {"own_address", "127.0.0.1"},
                       {"switch_address", "127.0.0.1"},
                       {"switch_port", std::to_string(at->local().port)},
                       {"group_address", "0.0.0.0"},
                       {"group_port", "0"},
                       {"host_number", "0"},
                       {"host_ranks", ""},
                       {"host_secret", ""}}};
  }
  /// The job's next place, with these roles: at the same switch, with another key; the old key is not admitted.
  [[nodiscard]] Line next_place(const std::string& roles) {
    at->evict(entry.job);
    ++entry.key;
    at->admit(entry);
    Line to = place();
    to.fields["aggregator"] = "0";
    to.fields["roles"] = roles;
    return to;
  }

  Strings calls{};
  std::vector<Line> questions{};
  std::shared_ptr<Session> session{};
};

/// The membership of the only worker of a job at its own switch.
class ScriptedMembership final : public Membership {
 public:
  explicit ScriptedMembership(Script& script)
      : script_(script),
        switch_({.local = {.address = kLoopback, .port = 0},
                 .ports = 1,
                 .threads = 1,
                 .sizes = {.slots = kSlots, .lanes_max = kLanes, .jobs_max = 8},
                 .transport = {}}) {}
  ~ScriptedMembership() override { script_.calls.emplace_back("destroyed"); }
  ScriptedMembership(const ScriptedMembership&) = delete;
  ScriptedMembership& operator=(const ScriptedMembership&) = delete;

  Grant join(const Bind& bind) override {
    script_.calls.emplace_back("join");
    script_.entry.endpoints[0] = {.address = kLoopback, .port = bind("127.0.0.1", 1, 0, 0)};
    script_.at = &switch_;
    if (script_.admitted) switch_.admit(script_.entry);
    Grant grant;
    grant.add_aggregator(script_.place());
    Line joined{.word = "joined", .fields = script_.joined};
    joined.fields.merge(Fields{{"rank", "0"},
                               {"spin_ns", "0"},
                               {"transport", "udp"},
                               {"exact_elements_max", "0"},
                               {"exact_when_wide", "0"},
                               {"bits", "32"},
                               {"sparse", "1"},
                               {"greeting_ms", "20000"}});
    grant.complete(joined);
    return grant;
  }

  void attend(std::shared_ptr<Session> session) override {
    script_.calls.emplace_back("attend");
    script_.session = session;
    if (script_.on_attend) script_.on_attend(*session);
  }

  Failure explain(const Line& question) override {
    script_.questions.push_back(question);
    return {"WiresumError", "because of " + question.word};
  }

  void abort(const std::string& reason) override { script_.calls.push_back("abort: " + reason); }

  void leave() override {
    if (script_.calls.back() != "leave") script_.calls.emplace_back("leave");
    script_.session.reset();
  }

 private:
  Script& script_;
  soft_switch::SwitchServer switch_;
};

std::shared_ptr<Session> join(Script& script, const std::function<void()>& pause = {}) {
  return Session::join("a-job", process::Owned<Membership>(new ScriptedMembership(script)), pause);
}

/// The error of joining, "" if there is none.
std::string why_not(Script& script, const std::function<void()>& pause = {}) {
  try {
    static_cast<void>(join(script, pause));
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

engine::Request sum_of(std::vector<std::int32_t>& values, std::int64_t timeout_ns = -1) {
  auto* const memory = reinterpret_cast<std::byte*>(values.data());
  return {.work = {.format = {.dtype = numeric::Dtype::kI32, .scaling = numeric::Scaling::kNone},
                   .regions = {{.source = memory, .destination = memory, .elements = values.size()}},
                   .reduction = {}},
          .timeout_ns = timeout_ns,
          .notify = true};
}

TEST(Session, JoinsGreetsSumsAndLeaves) {
  Script script;
  std::vector<std::int32_t> values(1000, 5);
  auto session = join(script);
  EXPECT_EQ(session->world_size(), 1);
  EXPECT_EQ(session->grant().switches, Strings{"a:1"});
  const Call call = session->submit(sum_of(values));
  EXPECT_TRUE(call.operation->wait(kPatience));
  EXPECT_EQ(call.failure(), nullptr);
  EXPECT_EQ(session->take_completed(kPatience).size(), 1U);
  EXPECT_EQ(session->standing().submitted, 2U) << "the request and the greeting";
  EXPECT_EQ(session->state().at("greeted"), "1");
  EXPECT_NE(session->state().at("results.0"), "0");
  session->leave();
  session->leave();
  EXPECT_EQ(script.calls, (Strings{"join", "attend", "leave"}));
  EXPECT_EQ(session->failure()->kind(), Failure::kClosed);
  EXPECT_THROW(static_cast<void>(session->submit(sum_of(values))), Failure);
}

TEST(Session, KeepsTheFirstFailureAndTellsTheOthersIfNeeded) {
  for (const bool known : {true, false}) {
    Script script;
    const auto session = join(script);
    script.session->end({"WorkerLostError", "rank 1 is lost"}, !known);
    session->abort({Failure::kAborted, "later"});
    script.session->end({"WorkerLostError", "rank 2 is lost"}, true);
    EXPECT_STREQ(session->failure()->what(), "rank 1 is lost");
    EXPECT_FALSE(session->is_usable());
    session->leave();
    EXPECT_EQ(script.calls, known ? (Strings{"join", "attend", "leave"})
                                  : (Strings{"join", "attend", "abort: rank 1 is lost", "leave"}));
  }
}

TEST(Session, ExplainsAndReportsAFailureOfTheDataPath) {
  Script script;
  const auto session = join(script);
  std::vector<std::int32_t> values(10'000, 1);
  const Call call = session->submit(sum_of(values, 0));
  ASSERT_TRUE(call.operation->wait(kPatience));
  const Call later = session->submit(sum_of(values));
  ASSERT_TRUE(later.operation->wait(kPatience));
  EXPECT_EQ(session->state().at("status"), "timed-out") << "for the membership, since the caller may not wait";
  EXPECT_STREQ(later.failure()->what(), "because of explain");
  EXPECT_EQ(call.failure(), session->failure());
  EXPECT_EQ(session->state().count("status"), 0U) << "it has been reported";
  ASSERT_EQ(script.questions.size(), 1U);
  const Fields& asked = script.questions.front().fields;
  EXPECT_EQ(asked.at("status"), "timed-out");
  EXPECT_EQ(asked.at("tensor"), std::to_string(call.operation->tensor()));
  EXPECT_EQ(asked.at("greeted"), "1");
  EXPECT_EQ(script.calls, (Strings{"join", "attend", "abort: because of explain"}));
  session->leave();
}

TEST(Session, ExplainsAnUnansweredGreeting) {
  Script script{.joined = {{"greeting_ms", "50"}}, .admitted = false};
  EXPECT_EQ(why_not(script), "because of explain");
  const Fields& asked = script.questions.front().fields;
  EXPECT_EQ(asked.at("status"), "timed-out");
  EXPECT_EQ(asked.at("greeted"), "0");
  EXPECT_EQ(asked.at("results.0"), "0");
  EXPECT_EQ(script.calls, (Strings{"join", "attend", "abort: because of explain", "leave", "destroyed"}));
}

TEST(Session, ExplainsAGreetingWithAWrongResult) {
  Script script{.joined = {{"rank", "1"}}};  // a rank that does not exist
  EXPECT_EQ(why_not(script), "because of greeting-wrong");
  EXPECT_EQ(script.questions.front().fields, (Fields{{"found", "2"}, {"expected", "1"}}));
}

TEST(Session, AnEndBeforeTheDataPathIsOpenFailsTheJoin) {
  Script script;
  script.on_attend = [](Session& session) {
    EXPECT_TRUE(session.state().empty());
    session.end({"WorkerLostError", "rank 1 is lost"}, false);
  };
  EXPECT_EQ(why_not(script), "rank 1 is lost");
  EXPECT_EQ(script.calls, (Strings{"join", "attend", "leave", "destroyed"}));
}

TEST(Session, AnInvalidGrantFailsTheJoin) {
  Script script{.joined = {{"bits", "64"}}};
  EXPECT_EQ(why_not(script), "'joined' came with bits=64, where a number from 8 to 32 must be");
  EXPECT_EQ(script.calls, (Strings{"join", "leave", "destroyed"}));
}

TEST(Session, AGrantSaysWithWhomItSharesAndWhatMakesNoSenseIsRefused) {
  Line line{.word = "aggregator", .fields = {}};
  line.fields = {{"job", "3"},
                 {"key", "7"},
                 {"worker", "1"},
                 {"workers", "5"},
                 {"lanes", "360"},
                 {"check_word", "1"},
                 {"slots", "64"},
                 {"threads", "1"},
                 {"own_address", "127.0.0.1"},
                 {"switch_port", "1"},
                 {"group_port", "0"},
                 {"host_number", "2"},
                 {"host_ranks", "1,4"},
                 {"switch_address", "127.0.0.1"},
                 {"group_address", "0.0.0.0"},
                 {"host_secret", std::string(62, '0') + "fF"}};
  const leaf::Place place = place_of(line);
  EXPECT_EQ(place.ranks, (std::vector<std::uint16_t>{1, 4}));
  EXPECT_EQ(place.index, 1);
  EXPECT_EQ(place.secret, std::string(31, '\0') + '\xff');
  EXPECT_EQ(aggregator_of(line).host, 2);
  EXPECT_EQ(aggregator_of(line).worker.element_words(), 359) << "the last word is the check word";
  const auto with = [&](const std::string& name, const std::string& value) {
    Line other = line;
    other.fields[name] = value;
    return other;
  };
  for (const auto& [name, value] : {std::pair{"worker", "2"},
                                    {"host_ranks", "1,x"},
                                    {"host_ranks", "1,4096"},
                                    {"host_secret", "00"},
                                    {"host_number", "32"},
                                    {"lanes", "1"},
                                    {"switch_port", "0"}}) {
    EXPECT_THROW(
        {
          static_cast<void>(aggregator_of(with(name, value)));
          static_cast<void>(place_of(with(name, value)));
        },
        LineError)
        << name << " " << value;
  }
  line = with("switch_port", "0");
  line.fields["workers"] = "2";
  EXPECT_EQ(aggregator_of(line).switch_endpoint.port, 0) << "all its ranks are on this host";
  EXPECT_FALSE(place_of(with("host_ranks", "")).is_shared());
}

TEST(Session, AGreetingCanBeInterrupted) {
  Script script{.admitted = false};
  EXPECT_EQ(why_not(script, [] { throw std::runtime_error("interrupted"); }), "interrupted");
  EXPECT_EQ(script.calls, (Strings{"join", "attend", "leave", "destroyed"}));
}

std::string repeated(const std::string& text, std::uint32_t slots = kSlots) {
  std::string all;
  for (std::uint32_t slot = 0; slot < slots; ++slot) all += text;
  return all;
}

TEST(Session, GoesOnAtAnotherLease) {
  Script script;
  const auto session = join(script);
  constexpr std::uint32_t kTwice = kGreetingChunksPerThread - kSlots;
  EXPECT_EQ(session->halt(0), repeated("00000003", kTwice) + repeated("00000002", kSlots - kTwice));
  std::vector<std::int32_t> values(10'000, 5);
  const Call call = session->submit(sum_of(values));
  EXPECT_FALSE(call.operation->wait(std::chrono::milliseconds(20)));
  session->move(script.next_place(repeated("0")));
  EXPECT_TRUE(call.operation->wait(kPatience));
  EXPECT_EQ(call.failure(), nullptr);
  EXPECT_THROW(session->move(script.next_place(repeated("0"))), std::runtime_error) << "it has not halted";
  EXPECT_THROW(static_cast<void>(session->halt(1)), LineError);
}

TEST(Session, OneThatHasLeftSaysSoWhenItIsToHaltOrMove) {
  Script script;
  const auto session = join(script);
  session->leave();
  for (const std::function<void()>& order : {std::function<void()>([&] { static_cast<void>(session->halt(0)); }),
                                             std::function<void()>([&] { session->move(script.place()); })}) {
    try {
      order();
      ADD_FAILURE() << "its data path has ended";
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.kind(), Failure::kClosed);
    }
  }
}

TEST(Session, AHaltOrAMoveMayComeBeforeThereIsADataPath) {
  for (const bool moves_at_once : {true, false}) {
    Script script;
    std::thread later;
    script.on_attend = [&](Session& session) {
      EXPECT_EQ(session.halt(0), repeated("00000001"));
      EXPECT_THROW(session.move(script.next_place(repeated("2"))), LineError) << "there is nothing to repeat";
      const Line to = script.next_place(repeated("0"));
      if (moves_at_once) {
        session.move(to);
      } else {
        later = std::thread([&session, to] {
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          session.move(to);
        });
      }
    };
    EXPECT_EQ(join(script)->state().at("greeted"), "1");
    if (later.joinable()) later.join();
  }
}

TEST(Session, IsRefusedInAForkedChildWhileTheParentGoesOn) {
  Script script;
  auto session = join(script);
  std::vector<std::int32_t> values(1000, 1);
  const pid_t child = fork();
  if (child == 0) {
    alarm(static_cast<unsigned>(kPatience.count()));
    std::string refusal;
    try {
      static_cast<void>(session->submit(sum_of(values)));
    } catch (const Failure& failure) {
      refusal = failure.kind();
    }
    session->abort({Failure::kAborted, "by a child"});
    session->leave();
    script.session.reset();
    session.reset();
    _exit(refusal == Failure::kForked && script.calls == Strings{"join", "attend"} ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(session->submit(sum_of(values)).operation->wait(kPatience));
  session->leave();
}

}  // namespace
}  // namespace wiresum::session
