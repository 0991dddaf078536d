// SPDX-License-Identifier: Apache-2.0

// What the stages tell each other. Each stage records what it found. `verdict` alone decides what leaves the switch and
// what is counted; `cells` and `lanes` decide what the cell becomes.

// Relation of a packet's round to its cell's. Newer: it begins the round, since it is the cell's next one, or the cell is
// another job's. Older: any other round than that and the cell's.
enum bit<2> relation_t {
    OLDER = 0,
    SAME = 1,
    NEWER = 2
}

// What becomes of a packet. Everything but PASS is a packet that was sent to the switch itself.
enum bit<3> fate_t {
    PASS = 0,       // to another host: forwarded
    DROP = 1,       // nothing leaves; a packet with reason ADMITTED is in its cell
    MULTICAST = 2,  // the RESULT, to every worker of the job
    RESEND = 3,     // the RESULT, to its sender
    ANSWER = 4,     // ARP, ping: back to where it came from
    MISSING = 5,    // to its sender: its contribution has not come
    RAISE = 6,      // the sum so far, to the switch above
    ASK = 7         // a question, to the switch above
}

// Why a packet to the switch ended as it did: the columns of counter `packets`. Rows are jobs.
enum bit<3> reason_t {
    ADMITTED = 0,
    RESENT = 1,
    DUPLICATE = 2,
    STALE = 3,
    OUT_OF_LEASE = 4,
    UNKNOWN = 5,
    MALFORMED = 6,
    OTHER = 7  // nothing to do with Wiresum: ARP, ping, another port
}
#define REASONS 8
const bool REASONS_HAVE_NUMBERS = static_assert(REASONS == 8, "REASONS must be 8: a reason has 3 bits of a counter's index");

struct metadata_t {
    // parser
    bit<1> to_switch_port;  // UDP over IPv4, to a port of ours
    bit<1> damaged;       // the frame ends before its headers do, or they are damaged
    port_t ingress_port;
    bit<16> zero;         // nobody writes it

    // form
    bit<1> well_formed;  // a header this program knows, and a length that goes with its kind
    bit<1> fits;         // a job's length, and a cell of the round's parity

    // own
    address_t asked_address;  // IPv4 destination, or whom an ARP request asks for
    mac_t own_mac;

    // admit
    bit<1> admitted;
    bit<1> has_parent;    // the switch is not the root of the job's tree
    row_t row;
    bitmap_t bit_own;     // the sender's
    bitmap_t bit_others;  // everybody else's, with has_parent the parent's among them
    cell_t cell_index;    // in the switch
    cell_t cell_prefix;   // what of the packet's cell must equal the next
    cell_t lease_prefix;
    bit<1> in_lease;
    group_t group;

    // cells
    relation_t relation;
    bit<1> seen_data;     // before this packet, in this round
    bit<1> diverged;
    bit<1> duplicate;
    bit<1> others_in;     // all other workers have contributed
    bit<1> done;          // others_in, and the parent's bit is in, too, where there is a parent

    // verdict
    fate_t fate;
    reason_t reason;

    // result
    bit<16> thread;       // of sender and receivers
    bit<1> bare;          // what is sent has no words
    bit<1> edited;        // its IPv4 header, by us

    // forward
    port_t forward_port;
    bit<1> flooded;

    // deliver
    worker_t receiver;
    bit<1> lost;
}
