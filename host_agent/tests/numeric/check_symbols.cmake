# Fails if an object of the archive OBJECTS that is compiled for an instruction set defines a global or weak function:
# the linker could then serve it to callers on machines without that set. NM is the nm to ask.
execute_process(COMMAND ${NM} --print-file-name --defined-only ${OBJECTS} OUTPUT_VARIABLE symbols RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "nm could not read ${OBJECTS}")
endif()
string(REGEX MATCHALL "[^\n]*kernels_(avx2|avx512)[^\n]* [DRB] [^\n]*" tables "${symbols}")
if(tables STREQUAL "" AND symbols MATCHES "kKernelsAvx2")
  message(FATAL_ERROR "found no table: has a file been renamed?")
endif()
string(REGEX MATCHALL "[^\n]*kernels_(avx2|avx512)[^\n]* [TWuV] [^\n]*" shared "${symbols}")
list(FILTER shared EXCLUDE REGEX "DW\\.ref\\.")  # a pointer to the C++ runtime, no code
if(NOT shared STREQUAL "")
  message(FATAL_ERROR "these functions would be shared with code for older processors: ${shared}")
endif()
