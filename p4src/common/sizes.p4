// SPDX-License-Identifier: Apache-2.0

// Every size of the switch program. What the controller must know of them it reads from P4Info (table and counter
// sizes) and from p4src/wiresum/compiled. What others must know too is compared with p4src/constants.toml by `make lint`.

// The program as P4Info names it. Its version is that of the wire protocol and of the tables: a controller needs both.
#define PROGRAM_NAME "wiresum"
#define PROGRAM_VERSION "1"

#ifndef LANES
// 32-bit words of a packet's payload. A power of two up to 64 on bmv2; 64 on Tofino, where each is half a register.
#define LANES 64
#endif

// Slots, two cells each. The wire's cell number has 16 bits; a lease is a part of these.
#ifndef SLOTS
#define SLOTS 4096
#endif
#define CELLS (2 * SLOTS)

// Jobs at one time. Rows 1..JOB_ROWS-1 of the counters are jobs', row 0 is for packets that belong to none.
#define JOB_ROWS 256
#define SWITCH_WORKERS_MAX 32

// Entries: each worker of a job has one in `admit` for each of its threads, and one in `deliver`.
#define ADMIT_ENTRIES 4096
#define ADMIT_PARENT_ENTRIES 1024
#define DELIVER_ENTRIES 2048
#define FORWARD_ENTRIES 1024
#define OWN_ENTRIES 16
#define LOSE_ENTRIES 64

typedef bit<8> row_t;        // of a job in the counters
typedef bit<16> cell_t;      // in the switch, or as on the wire within the lease
typedef bit<16> group_t;     // multicast group
typedef bit<9> port_t;
typedef bit<8> worker_t;     // index in the job
typedef bit<32> bitmap_t;    // of workers

// Multicast groups: a job's is its row; everything that is flooded goes to this one.
const group_t FLOOD_GROUP = 256;
// Where a job's tree goes on above this switch, its row + this is a group, too: of one copy, whose instance is 0xFF, which
// is no worker's and stands for the parent.
const group_t UPLINK_GROUPS = 512;

// The parent, in bitmaps of workers.
const bitmap_t PARENT_BIT = 0x80000000;
