#include "numeric/digit_sums.hpp"

#include <nanobind/ndarray.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "parts.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using wiresum::numeric::DigitSums;

template <class Element>
using Vector = nb::ndarray<Element, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = Vector<std::uint8_t>;
using Integers = Vector<std::int32_t>;
using Floats = Vector<const float>;

void require_size(const char* name, std::size_t size, std::size_t expected) {
  if (size != expected) {
    throw std::invalid_argument(std::string(name) + ": " + std::to_string(size) + " elements instead of " +
                                std::to_string(expected));
  }
}

DigitSums::Extents extents_of(const DigitSums& sums, const Bytes& ends, const Bytes& depths, std::size_t elements) {
  require_size("ends", ends.size(), DigitSums::blocks(elements));
  require_size("depths", depths.size(), DigitSums::blocks(elements));
  const DigitSums::Extents extents{{ends.data(), ends.size()}, {depths.data(), depths.size()}};
  if (!sums.possible(extents)) {
    throw std::invalid_argument("these ends and depths are of no sums: do all workers run the same version?");
  }
  return extents;
}

void make_digit_sums(DigitSums* self, unsigned parts, unsigned words) {
  if (parts < 1 || parts > DigitSums::kPartsMax) {
    throw std::invalid_argument("there are " + std::to_string(parts) + " parts instead of 1 to " +
                                std::to_string(DigitSums::kPartsMax));
  }
  new (self) DigitSums(parts, words);
}

bool add_part(const DigitSums& self, const Floats& part, const Bytes& ends, const Bytes& depths,
              const Integers& lanes) {
  const auto extents = extents_of(self, ends, depths, part.size());
  require_size("lanes", lanes.size(), self.lanes(part.size()));
  const Computing computing;
  return self.add({part.data(), part.size()}, extents, lanes.data());
}

void count_special(const DigitSums& self, const Floats& part, const Integers& counts) {
  require_size("counts", counts.size(), part.size());
  const Computing computing;
  self.count_special({part.data(), part.size()}, counts.data());
}

std::size_t packed_words(const DigitSums& self, const Bytes& ends, const Bytes& depths, std::size_t elements) {
  return self.packed(extents_of(self, ends, depths, elements), elements);
}

void pack_words(const DigitSums& self, const Bytes& ends, const Bytes& depths, const Bytes& own_ends,
                const Bytes& own_depths, const Integers& lanes, std::size_t elements, const Integers& words) {
  const auto agreed = extents_of(self, ends, depths, elements);
  const auto own = extents_of(self, own_ends, own_depths, elements);
  for (std::size_t block = 0; block < own.ends.size(); ++block) {
    if (own.ends[block] > agreed.ends[block] || (self.exact() && own.depths[block] > agreed.depths[block])) {
      throw std::invalid_argument("what the workers have agreed on is less than what this one has");
    }
  }
  require_size("lanes", lanes.size(), self.lanes(elements));
  require_size("words", words.size(), self.packed(agreed, elements));
  const Computing computing;
  self.pack(own, agreed, lanes.data(), elements, words.data());
}

void join_words(const DigitSums& self, const Bytes& ends, const Bytes& depths, const Integers& words,
                const Integers& counts, unsigned divisor, const Vector<float>& elements) {
  const auto agreed = extents_of(self, ends, depths, elements.size());
  require_size("words", words.size(), self.packed(agreed, elements.size()));
  if (counts.size() != 0) require_size("counts", counts.size(), elements.size());
  if (divisor < 1 || divisor > DigitSums::kPartsMax) throw std::invalid_argument("the divisor is no number of parts");
  const Computing computing;
  self.join(agreed, words.data(), counts.size() == 0 ? nullptr : counts.data(), divisor,
            {elements.data(), elements.size()});
}

}  // namespace

// Arrays of another type are refused: a conversion would write results to the copy.
void bind_digit_sums(nb::module_& module) {
  const auto array = [](const char* name) { return nb::arg(name).noconvert(); };
  nb::class_<DigitSums>(module, "DigitSums")
      .def("__init__", &make_digit_sums, "parts"_a, "words"_a)
      .def_ro_static("BLOCK", &DigitSums::kBlock)
      .def_ro_static("PARTS_MAX", &DigitSums::kPartsMax)
      .def_prop_ro("exact", &DigitSums::exact)
      .def("lanes", &DigitSums::lanes, "elements"_a)
      .def("add", &add_part, array("part"), array("ends"), array("depths"), array("lanes"))
      .def("count_special", &count_special, array("part"), array("counts"))
      .def("packed", &packed_words, array("ends"), array("depths"), "elements"_a)
      .def("pack", &pack_words, array("ends"), array("depths"), array("own_ends"), array("own_depths"), array("lanes"),
           "elements"_a, array("words"))
      .def("join", &join_words, array("ends"), array("depths"), array("words"), array("counts"), "divisor"_a,
           array("elements"));
}
