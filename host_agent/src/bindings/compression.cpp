#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "numeric/codec.hpp"
#include "numeric/indices.hpp"
#include "numeric/kernels.hpp"
#include "numeric/selection.hpp"
#include "parts.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using namespace wiresum;

template <class Element>
using Vector = nb::ndarray<Element, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using DrawTuple = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>;

template <class Element>
const numeric::GradientKernels<Element>& gradients() {
  if constexpr (std::is_same_v<Element, float>) {
    return numeric::active_kernels().float_gradients;
  } else {
    return numeric::active_kernels().double_gradients;
  }
}

numeric::Draw make_draw(const DrawTuple& draw) {
  const auto& [key0, key1, worker, step, stream] = draw;
  return {{key0, key1}, worker, step, stream};
}

void require_words(std::uint64_t first, std::size_t count) {
  if (first > numeric::kDrawWordsMax || count > numeric::kDrawWordsMax - first) {
    throw std::invalid_argument("a draw has 2^34 words: compress a tensor of more in several segments");
  }
}

void require_at_most(std::size_t elements, std::size_t most) {
  if (elements > most) {
    throw std::invalid_argument("a tensor of " + std::to_string(elements) + " elements, of which no more than " +
                                std::to_string(most) + " can be told apart by their indices: compress it in several");
  }
}

void require_same_size(std::size_t one, std::size_t other) {
  if (one != other) throw std::invalid_argument("source and destination differ in size");
}

void random_words(const DrawTuple& draw, std::uint64_t first, const Vector<std::uint32_t>& words) {
  require_words(first, words.size());
  const Computing computing;
  numeric::active_kernels().random_words(make_draw(draw), first, words.size(), words.data());
}

/// Each block of `block` elements has an inverse quantum; the last block may be shorter.
template <class Element>
void round_stochastically(const DrawTuple& draw, const Vector<const Element>& source,
                          const Vector<const double>& inverses, std::size_t block, std::int32_t limit,
                          const Vector<std::int32_t>& integers) {
  require_words(0, source.size());
  require_same_size(source.size(), integers.size());
  if (block == 0 || inverses.size() < (source.size() + block - 1) / block) {
    throw std::invalid_argument("there must be an inverse quantum for each block");
  }
  const Computing computing;
  for (std::size_t at = 0, b = 0; at < source.size(); at += block, ++b) {
    const std::size_t count = std::min(block, source.size() - at);
    gradients<Element>().round(make_draw(draw), at, source.data() + at, count, inverses.data()[b], limit,
                               integers.data() + at);
  }
}

template <class Element>
void scale_integers(const Vector<const std::int32_t>& integers, const Vector<const double>& factors, std::size_t block,
                    const Vector<Element>& values) {
  require_same_size(integers.size(), values.size());
  if (block == 0 || factors.size() < (integers.size() + block - 1) / block) {
    throw std::invalid_argument("there must be a factor for each block");
  }
  const Computing computing;
  for (std::size_t at = 0, b = 0; at < integers.size(); at += block, ++b) {
    const std::size_t count = std::min(block, integers.size() - at);
    gradients<Element>().scale(integers.data() + at, count, factors.data()[b], values.data() + at);
  }
}

void require_lanes(unsigned bits, std::size_t integers, std::size_t words) {
  if (bits != 8 && bits != 16 && bits != 32) {
    throw std::invalid_argument("lanes have 8, 16 or 32 bits");
  }
  if (integers > words * (32 / bits)) throw std::invalid_argument("the words have no room for the integers");
}

void pack_lanes(unsigned bits, const Vector<const std::int32_t>& integers, const Vector<std::uint32_t>& words) {
  require_lanes(bits, integers.size(), words.size());
  const Computing computing;
  numeric::pack_lanes(bits, integers.data(), integers.size(), words.data(), words.size());
}

void unpack_lanes(unsigned bits, const Vector<const std::uint32_t>& words, const Vector<std::int32_t>& integers) {
  require_lanes(bits, integers.size(), words.size());
  const Computing computing;
  numeric::unpack_lanes(bits, words.data(), words.size(), integers.data(), integers.size());
}

template <class Element>
double square_distance(const Vector<const Element>& a, const Vector<const Element>& b) {
  require_same_size(a.size(), b.size());
  const Computing computing;
  return gradients<Element>().square_distance(a.data(), b.data(), a.size());
}

template <class Element>
void largest(const Vector<const Element>& source, const Vector<std::int64_t>& indices) {
  require_at_most(source.size(), numeric::kLargestElementsMax);
  if (indices.size() > source.size()) throw std::invalid_argument("more are wanted than there are");
  const Computing computing;
  const std::size_t scratch_bytes = numeric::largest_scratch_bytes(source.size(), indices.size(), sizeof(Element));
  const auto scratch = std::make_unique_for_overwrite<std::byte[]>(scratch_bytes);
  numeric::largest(source.data(), source.size(), indices.size(), indices.data(), {scratch.get(), scratch_bytes});
}

template <class Element>
std::span<Element> span_of(const Vector<Element>& vector) {
  return {vector.data(), vector.size()};
}

std::size_t index_code_bytes(std::size_t count, std::size_t size) {
  require_at_most(size, numeric::kIndexedElementsMax);
  if (count > size) throw std::invalid_argument("there are more indices than elements");
  return numeric::index_code_bytes(count, size);
}

void encode_indices(const Vector<const std::int64_t>& indices, std::size_t size, const Vector<std::uint8_t>& code) {
  require_at_most(size, numeric::kIndexedElementsMax);
  bool ascend = false;
  {
    const Computing computing;
    ascend = numeric::encode_indices(span_of(indices), size, span_of(code));
  }
  if (!ascend)
    throw std::invalid_argument("indices to encode must ascend below the size, and the code have their size");
}

void decode_indices(const Vector<const std::uint8_t>& code, std::size_t size, const Vector<std::int64_t>& indices) {
  require_at_most(size, numeric::kIndexedElementsMax);
  bool is_code = false;
  {
    const Computing computing;
    is_code = numeric::decode_indices(span_of(code), size, span_of(indices));
  }
  if (!is_code) throw std::invalid_argument("this is no code of so many indices: do all workers run the same version?");
}

/// Returns the number of `indices` that were written.
std::size_t unite_indices(const std::vector<Vector<const std::int64_t>>& parts, std::size_t size,
                          const Vector<std::int64_t>& indices) {
  std::size_t total = 0;
  for (const auto& part : parts) {
    total += part.size();
    const auto in_range = [size](std::int64_t index) { return index >= 0 && index < static_cast<std::int64_t>(size); };
    if (!std::all_of(part.data(), part.data() + part.size(), in_range)) {
      throw std::invalid_argument("an index is not below the size");
    }
  }
  if (indices.size() < std::min(total, size)) throw std::invalid_argument("there is no room for the union");
  const Computing computing;
  std::vector<std::uint64_t> bitmap(size / 64 + 1);
  for (const auto& part : parts) numeric::mark_indices(span_of(part), bitmap);
  return numeric::marked_indices(bitmap, indices.data());
}

void find_places(const Vector<const std::int64_t>& indices, const Vector<const std::int64_t>& others,
                 const Vector<std::int64_t>& places) {
  require_same_size(indices.size(), places.size());
  const Computing computing;
  numeric::find_places(span_of(indices), span_of(others), places.data());
}

/// A `with` statement in which the calling thread has the default floating-point environment.
class DefaultFloats {
 public:
  void enter() noexcept { environment_.emplace(); }
  void exit(const nb::args&) noexcept { environment_.reset(); }

 private:
  std::optional<numeric::DefaultFloatEnvironment> environment_;
};

}  // namespace

// Arrays of another type are refused: a conversion would write results to the copy.
void bind_compression(nb::module_& module) {
  const auto array = [](const char* name) { return nb::arg(name).noconvert(); };
  nb::class_<DefaultFloats>(module, "DefaultFloats")
      .def(nb::init<>())
      .def("__enter__", &DefaultFloats::enter)
      .def("__exit__", &DefaultFloats::exit);
  module.def("random_words", &random_words, "draw"_a, "first"_a, array("words"));
  module.def("round_stochastically", &round_stochastically<float>, "draw"_a, array("source"), array("inverses"),
             "block"_a, "limit"_a, array("integers"));
  module.def("round_stochastically", &round_stochastically<double>, "draw"_a, array("source"), array("inverses"),
             "block"_a, "limit"_a, array("integers"));
  module.def("scale_integers", &scale_integers<float>, array("integers"), array("factors"), "block"_a, array("values"));
  module.def("scale_integers", &scale_integers<double>, array("integers"), array("factors"), "block"_a,
             array("values"));
  module.def("pack_lanes", &pack_lanes, "bits"_a, array("integers"), array("words"));
  module.def("unpack_lanes", &unpack_lanes, "bits"_a, array("words"), array("integers"));
  module.def("square_distance", &square_distance<float>, array("a"), array("b"));
  module.def("square_distance", &square_distance<double>, array("a"), array("b"));
  module.def("largest", &largest<float>, array("source"), array("indices"));
  module.def("largest", &largest<double>, array("source"), array("indices"));
  module.def("largest", &largest<std::int32_t>, array("source"), array("indices"));
  module.def("index_code_bytes", &index_code_bytes, "count"_a, "size"_a);
  module.def("encode_indices", &encode_indices, array("indices"), "size"_a, array("code"));
  module.def("decode_indices", &decode_indices, array("code"), "size"_a, array("indices"));
  module.def("unite_indices", &unite_indices, "parts"_a, "size"_a, array("indices"));
  module.def("find_places", &find_places, array("indices"), array("others"), array("places"));
}
