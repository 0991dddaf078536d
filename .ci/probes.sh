# What this machine has. Sourced by setup and by the steps that do without what is missing.
# shellcheck shell=bash

gcc_major_min=11
cmake_min=3.24

have() { command -v "$1" >/dev/null 2>&1; }
has_compiler() { have g++ && (("$(g++ -dumpversion | cut -d. -f1)" >= gcc_major_min)); }
has_cmake() { have cmake && printf '%s\n%s\n' "$cmake_min" "$(cmake --version | awk 'NR == 1 {print $3}')" | sort -CV; }
has_ninja() { have ninja; }
has_ccache() { have ccache; }
has_gtest() { [[ -e /usr/include/gtest/gtest.h || -e /usr/local/include/gtest/gtest.h ]]; }
has_ip() { have ip && have tc; }
has_ethtool() { have ethtool; }
has_mininet() { have mnexec && have brctl && have tcpdump && have ping && [[ -e /usr/lib/python3/dist-packages/mininet/__init__.py ]]; }
has_tshark() { have tshark; }
has_nft() { have nft; }
has_shellcheck() { have shellcheck; }
has_pkg_config() { have pkg-config; }
has_openmpi() { have mpirun && have mpicc; }
has_dpdk() { have pkg-config && pkg-config --exists "libdpdk >= 22.11"; }
has_libxdp() { have pkg-config && pkg-config --exists libxdp libbpf; }
has_clang() { have clang; }
has_libfuzzer() {
  have clang++ && echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }' |
    clang++ -std=c++20 -fsanitize=fuzzer,address,undefined -x c++ - -o /dev/null 2>/dev/null
}
# The interpreters to make packages for: PYTHONS, or those of the supported releases that the PATH has and that start.
pythons() {
  local minor
  if [[ -n ${PYTHONS:-} ]]; then
    tr ' ' '\n' <<<"$PYTHONS"
    return
  fi
  for minor in 10 11 12 13 14; do
    "python3.$minor" -c '' 2>/dev/null && command -v "python3.$minor"
  done
  true
}
