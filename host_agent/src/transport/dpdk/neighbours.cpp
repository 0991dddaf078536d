#include "transport/dpdk/neighbours.hpp"

#include <algorithm>
#include <cassert>

namespace wiresum::transport::dpdk {
namespace {

/// Addresses of one subnet differ in their low bits, which a multiplication carries up.
std::size_t set_of(std::uint32_t address) noexcept {
  static_assert(Neighbours::kSets == 64);
  return static_cast<std::size_t>(address * 0x9E37'79B1u >> 26);
}

}  // namespace

const NextHop* Neighbours::find(std::uint32_t address, TimeNs now) noexcept {
  Neighbour* entry = known(address);
  if (entry == nullptr) entry = take(address, now);
  if (entry == nullptr) return nullptr;
  entry->used_ns = now;
  if (entry->state == State::kAsked) return nullptr;
  if (entry->state == State::kConfirmed && now - entry->confirmed_ns > kConfirmedNs) doubt(*entry, now);
  return &entry->hop;
}

bool Neighbours::silent(std::uint32_t address) noexcept {
  const Neighbour* const entry = known(address);
  return entry != nullptr && entry->state == State::kAsked && entry->unanswered >= kSilent;
}

void Neighbours::heard(std::uint32_t address, const NextHop& from, TimeNs now) noexcept {
  Neighbour* const entry = known(address);
  if (entry == nullptr) {
    // The datagram will be answered, so the sender's address is needed soon.
    static_cast<void>(take(address, now));
  } else if (entry->state != State::kAsked) {
    if (entry->hop == from) {
      confirm(*entry, now);
    } else if (entry->state == State::kConfirmed) {
      doubt(*entry, now);
    }
  }
}

void Neighbours::claimed(std::uint32_t address, const NextHop& by, bool answer, TimeNs now) noexcept {
  Neighbour* const entry = known(address);
  if (entry == nullptr) return;
  if (entry->state == State::kAsked) {
    const bool asked = entry->unanswered != 0 && now - entry->asked_ns < kAnswerNs;
    if (!answer || !asked) return;
    entry->hop = by;
    confirm(*entry, now);
  } else if (entry->hop == by) {
    if (answer) confirm(*entry, now);
  } else if (entry->state == State::kConfirmed) {
    doubt(*entry, now);
  }
}

bool Neighbours::poll_question(TimeNs now, Question& question) noexcept {
  if (open_ == 0 || now < next_question_ns_) return false;
  for (std::size_t looked = 0; looked != entries_.size(); ++looked) {
    Neighbour& entry = entries_[next_entry_];
    next_entry_ = (next_entry_ + 1) % entries_.size();
    const bool open = entry.state == State::kAsked || entry.state == State::kDoubted;
    if (!open || now < entry.next_ns) continue;
    if (entry.state == State::kAsked && now - entry.used_ns > kForgetNs) {
      entry.state = State::kFree;
      --open_;
      continue;
    }
    if (entry.state == State::kDoubted && entry.unanswered == kDoubtsMax) ask(entry, now);
    question = {.address = entry.address, .everybody = entry.state == State::kAsked, .to = entry.hop};
    entry.next_ns =
        now + (entry.state == State::kDoubted ? kDoubtNs : std::min(kAskNsMin << entry.unanswered, kAskNsMax));
    entry.unanswered = std::min(entry.unanswered + 1, 8);
    entry.asked_ns = now;
    next_question_ns_ = now + kQuestionNs;
    return true;
  }
  next_question_ns_ = now + kQuestionNs;
  return false;
}

Neighbours::Neighbour* Neighbours::known(std::uint32_t address) noexcept {
  Neighbour* const set = &entries_[set_of(address) * kWays];
  for (std::size_t way = 0; way != kWays; ++way) {
    if (set[way].state != State::kFree && set[way].address == address) return &set[way];
  }
  return nullptr;
}

/// Makes an entry for an address without one; null if all possible entries are in use.
Neighbours::Neighbour* Neighbours::take(std::uint32_t address, TimeNs now) noexcept {
  Neighbour* const set = &entries_[set_of(address) * kWays];
  Neighbour* place = nullptr;
  for (std::size_t way = 0; way != kWays; ++way) {
    Neighbour& entry = set[way];
    if (entry.state == State::kFree) {
      place = &entry;
      break;
    }
    const bool old = entry.state == State::kConfirmed && now - entry.confirmed_ns > kConfirmedNs;
    if ((entry.state == State::kAsked || old) && (place == nullptr || entry.used_ns < place->used_ns)) place = &entry;
  }
  if (place == nullptr) return nullptr;
  if (place->state == State::kAsked) --open_;
  *place = {};
  place->address = address;
  place->used_ns = now;
  ++open_;
  ask(*place, now);
  return place;
}

void Neighbours::ask(Neighbour& entry, TimeNs now) noexcept {
  entry.state = State::kAsked;
  entry.unanswered = 0;
  entry.next_ns = now;
}

void Neighbours::doubt(Neighbour& entry, TimeNs now) noexcept {
  assert(entry.state == State::kConfirmed);
  entry.state = State::kDoubted;
  entry.unanswered = 0;
  entry.next_ns = now;
  ++open_;
}

void Neighbours::confirm(Neighbour& entry, TimeNs now) noexcept {
  if (entry.state != State::kConfirmed) --open_;
  entry.state = State::kConfirmed;
  entry.confirmed_ns = now;
}

}  // namespace wiresum::transport::dpdk
