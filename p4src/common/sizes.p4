// SPDX-License-Identifier: Apache-2.0

// Every size of the switch program, and what each demands of others: sizes that do not fit each other do not compile.
// The controller reads those of tables, counters and registers from P4Info. What others must know too is compared with
// p4src/constants.toml by `make lint`.

// The program as P4Info names it. Its version goes up with each change that a controller or a worker would notice: of
// tables, of what a packet means, or of its answer. The header's own version is WIRE_VERSION.
#define PROGRAM_NAME "wiresum"
#define PROGRAM_VERSION "2"

#ifndef LANES
// 32-bit words of a packet's payload. Up to 64 on bmv2; 64 on Tofino, where each is half a register.
#define LANES 64
#endif
#define LANES_UNIT 8
const bool LANES_ARE_WHOLE_UNITS = static_assert(LANES >= LANES_UNIT && LANES % LANES_UNIT == 0,
                                                 "LANES must be a multiple of 8, as workers offer no others");

// Slots, two cells each. A lease is a part of these.
#ifndef SLOTS
#define SLOTS 4096
#endif
#define CELLS (2 * SLOTS)
#define CELL_BITS 16
const bool CELLS_HAVE_NUMBERS = static_assert(SLOTS >= 1 && CELLS <= (1 << CELL_BITS),
                                              "SLOTS must be 1 to 32768: a cell's number has 16 bits");

// Jobs at one time. Rows 1..JOB_ROWS-1 of the counters are jobs', row 0 is for packets that belong to none.
#define JOB_ROWS 256
#define ROW_BITS 8
const bool ROWS_HAVE_NUMBERS = static_assert(JOB_ROWS >= 2 && JOB_ROWS <= (1 << ROW_BITS),
                                             "JOB_ROWS must be 2 to 256: a row's number has 8 bits");
#define SWITCH_WORKERS_MAX 32
#define THREADS_MAX 16
const bool WORKERS_HAVE_BITS = static_assert(SWITCH_WORKERS_MAX == 32,
                                             "SWITCH_WORKERS_MAX must be 32: bitmaps have so many bits");

// Entries: each worker of a job has one in `admit` for each of its threads, and one in `deliver`.
#define ADMIT_ENTRIES 4096
#define ADMIT_PARENT_ENTRIES 1024
#define DELIVER_ENTRIES 2048
#define FORWARD_ENTRIES 1024
#define OWN_ENTRIES 16
const bool A_JOB_HAS_ROOM = static_assert(
    ADMIT_ENTRIES >= SWITCH_WORKERS_MAX * THREADS_MAX && ADMIT_PARENT_ENTRIES >= THREADS_MAX &&
        DELIVER_ENTRIES >= SWITCH_WORKERS_MAX,
    "tables admit, admit_parent_entry and deliver must have room for a job of 32 workers with 16 threads");
// The switch's address in frames to its MAC and in broadcasts, and the number of keys that the controller leaves there.
const bool OWN_HAS_ROOM = static_assert(OWN_ENTRIES >= 3, "table own must have room for three entries");

typedef bit<ROW_BITS> row_t;    // of a job in the counters
typedef bit<CELL_BITS> cell_t;  // in the switch, or as on the wire within the lease
typedef bit<16> group_t;        // multicast group
typedef bit<9> port_t;
typedef bit<8> worker_t;        // index at this switch
typedef bit<32> bitmap_t;       // of workers

// Multicast groups: a job's is its row; everything that is flooded goes to this one.
const group_t FLOOD_GROUP = 256;
// Where a job's tree goes on above this switch, its row + this is a group, too: of one copy, whose instance is 0xFF, which
// is no worker's and stands for the parent.
const group_t UPLINK_GROUPS = 512;
const bool GROUPS_DIFFER = static_assert(
    JOB_ROWS <= FLOOD_GROUP && FLOOD_GROUP < UPLINK_GROUPS && (UPLINK_GROUPS & (UPLINK_GROUPS - 1)) == 0,
    "multicast groups must differ: JOB_ROWS <= FLOOD_GROUP < UPLINK_GROUPS, and the last must be a power of two");

// The parent, in bitmaps of workers.
const bitmap_t PARENT_BIT = 0x80000000;
