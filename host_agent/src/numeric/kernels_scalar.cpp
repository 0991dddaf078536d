// The kernels in portable C++, the reference in the tests of every instruction set.
#include "numeric/kernel_table.hpp"

namespace wiresum::numeric {

#if defined(__x86_64__)
constinit const Kernels kKernelsScalar = make_kernels<One, One>("scalar");
#else
constinit const Kernels kKernelsScalar = make_kernels<One, One>("portable");
#endif

}  // namespace wiresum::numeric
