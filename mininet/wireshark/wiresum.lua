-- Shows Wiresum's packets in Wireshark: every field of the header (docs/protocol.md, section 2), the words, and what
-- follows from them: the slot and the thread, whether round and cell agree, and which workers have contributed to the
-- slot's round so far.
--
--     tshark -X lua_script:mininet/wireshark/wiresum.lua -r build/mininet/pcaps/s1-eth1.pcap
--     wireshark -X lua_script:mininet/wireshark/wiresum.lua build/mininet/pcaps/s1-eth1.pcap
--
-- Or copy it to your folder of Lua plugins (Help, About Wireshark, Folders). If the switch uses other ports, set them
-- in Preferences, Protocols, WIRESUM, or with -o wiresum.port:40000.

-- Of p4src/constants.toml. Begin.
local WIRE_VERSION = 1
local SWITCH_PORT = 43488
local THREADS_MAX = 16
local WORD_BYTES = 4
local HEADER_BYTES = 24
local DATA, EMPTY, RESULT, META, QUESTION, MISSING = 0, 1, 2, 3, 4, 5
local KINDS = {
  [DATA] = "DATA", [EMPTY] = "EMPTY", [RESULT] = "RESULT", [META] = "META", [QUESTION] = "QUESTION", [MISSING] = "MISSING"
}
-- Of each field, the first byte and how many.
local SPANS = {
  version = { 0, 1 }, kind = { 0, 1 }, flags = { 1, 1 }, job = { 2, 2 }, key = { 4, 4 }, worker = { 8, 1 },
  exponent = { 9, 1 }, cell = { 10, 2 }, round = { 12, 4 }, tensor = { 16, 4 }, chunk = { 20, 4 }
}
local FLAG_RETRANSMISSION = 0x01
local FLAG_DIVERGED = 0x02
-- End.
local CONTRIBUTES = { [DATA] = true, [EMPTY] = true, [META] = true }
local HAS_WORDS = { [DATA] = true, [RESULT] = true }
local PARITIES = { [0] = "even", [1] = "odd" }

local function field(tvb, name)
  return tvb(SPANS[name][1], SPANS[name][2])
end

local function has_flag(tvb, flag)
  return math.floor(field(tvb, "flags"):uint() / flag) % 2 == 1
end

local wiresum = Proto("wiresum", "Wiresum, in-network aggregation")
wiresum.prefs.port = Pref.uint("Base port", SWITCH_PORT, "First of the switch's UDP ports, one for each thread")

local f = {
  version = ProtoField.uint8("wiresum.version", "Version", base.DEC, nil, 0xF0),
  kind = ProtoField.uint8("wiresum.kind", "Kind", base.DEC, KINDS, 0x0F),
  flags = ProtoField.uint8("wiresum.flags", "Flags", base.HEX),
  retransmission = ProtoField.bool("wiresum.flags.retransmission", "Sent again", 8, nil, FLAG_RETRANSMISSION),
  diverged = ProtoField.bool("wiresum.flags.diverged", "Its contributions name different tensors", 8, nil, FLAG_DIVERGED),
  job = ProtoField.uint16("wiresum.job", "Job", base.DEC),
  key = ProtoField.uint32("wiresum.key", "Key", base.HEX),
  worker = ProtoField.uint8("wiresum.worker", "Worker", base.DEC),
  exponent = ProtoField.int8("wiresum.exponent", "Exponent", base.DEC),
  cell = ProtoField.uint16("wiresum.cell", "Cell", base.DEC),
  slot = ProtoField.uint16("wiresum.slot", "Slot", base.DEC),
  round = ProtoField.uint32("wiresum.round", "Round", base.DEC),
  parity = ProtoField.uint8("wiresum.parity", "Parity of the round", base.DEC, PARITIES),
  tensor = ProtoField.uint32("wiresum.tensor", "Tensor", base.HEX),
  signature = ProtoField.uint16("wiresum.tensor.signature", "Signature of the call", base.HEX),
  sequence = ProtoField.uint16("wiresum.tensor.sequence", "Number of the collective", base.DEC),
  chunk = ProtoField.uint32("wiresum.chunk", "Chunk", base.DEC),
  thread = ProtoField.uint8("wiresum.thread", "Thread", base.DEC),
  words = ProtoField.uint32("wiresum.words", "Words", base.DEC),
  word = ProtoField.int32("wiresum.word", "Word", base.DEC),
  seen = ProtoField.string("wiresum.seen", "Workers seen in this slot's round"),
}
wiresum.fields = f

local ERROR, NOTE = expert.severity.ERROR, expert.severity.NOTE
local MALFORMED, SEQUENCE = expert.group.MALFORMED, expert.group.SEQUENCE
local e = {
  truncated = ProtoExpert.new("wiresum.truncated", "Shorter than a header", MALFORMED, ERROR),
  version = ProtoExpert.new("wiresum.bad_version", "A version other than " .. WIRE_VERSION, MALFORMED, ERROR),
  kind = ProtoExpert.new("wiresum.bad_kind", "A kind that this version does not have", MALFORMED, ERROR),
  ragged = ProtoExpert.new("wiresum.ragged", "The payload is no whole number of words", MALFORMED, ERROR),
  surplus = ProtoExpert.new("wiresum.surplus", "A payload on a kind that has none", MALFORMED, ERROR),
  empty = ProtoExpert.new("wiresum.no_words", "DATA without words", MALFORMED, ERROR),
  parity = ProtoExpert.new("wiresum.bad_parity", "The cell is not one of the round's parity", MALFORMED, ERROR),
  diverged = ProtoExpert.new("wiresum.diverged", "The workers call different collectives", SEQUENCE, ERROR),
  again = ProtoExpert.new("wiresum.again", "Sent again", SEQUENCE, NOTE),
  missing = ProtoExpert.new("wiresum.missing", "The switch has not got this contribution", SEQUENCE, NOTE),
}
wiresum.experts = e

-- Wireshark dissects all frames once in order, and later those that are shown again; the first pass stores the workers.
local workers_of_round, seen_at_frame

function wiresum.init()
  workers_of_round, seen_at_frame = {}, {}
end

local function workers_seen(tvb, frame)
  if seen_at_frame[frame] == nil then
    local found = {}
    for _, part in ipairs({ "job", "key", "cell", "round" }) do
      table.insert(found, field(tvb, part):uint())
    end
    local name = table.concat(found, " ")
    local workers = workers_of_round[name] or {}
    workers_of_round[name] = workers
    if CONTRIBUTES[field(tvb, "kind"):bitfield(4, 4)] then
      workers[field(tvb, "worker"):uint()] = true
    end
    local numbers = {}
    for worker in pairs(workers) do
      table.insert(numbers, worker)
    end
    table.sort(numbers)
    seen_at_frame[frame] = table.concat(numbers, ", ")
  end
  return seen_at_frame[frame]
end

-- RESULT and MISSING have the switch's port as source, and all other packets have it as destination.
local function thread(pinfo, kind)
  local port = (kind == RESULT or kind == MISSING) and pinfo.src_port or pinfo.dst_port
  return port - wiresum.prefs.port
end

local function add_words(tvb, tree, kind)
  local bytes = tvb:len() - HEADER_BYTES
  local count = math.floor(bytes / WORD_BYTES)
  if bytes == 0 then
    if kind == DATA then
      tree:add_proto_expert_info(e.empty)
    end
    tree:add(f.words, 0):set_generated()
    return 0
  end
  local payload = tvb(HEADER_BYTES, bytes)
  local words = tree:add(f.words, payload, count)
  if not HAS_WORDS[kind] then
    words:add_proto_expert_info(e.surplus)
  elseif bytes % WORD_BYTES ~= 0 then
    words:add_proto_expert_info(e.ragged)
  end
  for index = 0, count - 1 do
    local at = tvb(HEADER_BYTES + WORD_BYTES * index, WORD_BYTES)
    words:add(f.word, at):set_text(string.format("Word %d: %d", index, at:int()))
  end
  return count
end

local function add_header(tvb, pinfo, tree, kind)
  local cell, round = field(tvb, "cell"):uint(), field(tvb, "round"):uint()
  if tree:add(f.version, field(tvb, "version")) and field(tvb, "version"):bitfield(0, 4) ~= WIRE_VERSION then
    tree:add_proto_expert_info(e.version)
  end
  local kind_item = tree:add(f.kind, field(tvb, "kind"))
  if not KINDS[kind] then
    kind_item:add_proto_expert_info(e.kind)
  end
  local flags = tree:add(f.flags, field(tvb, "flags"))
  flags:add(f.retransmission, field(tvb, "flags"))
  flags:add(f.diverged, field(tvb, "flags"))
  tree:add(f.job, field(tvb, "job"))
  tree:add(f.key, field(tvb, "key"))
  tree:add(f.worker, field(tvb, "worker"))
  tree:add(f.exponent, field(tvb, "exponent"))
  local cell_item = tree:add(f.cell, field(tvb, "cell"))
  tree:add(f.slot, field(tvb, "cell"), math.floor(cell / 2)):set_generated()
  tree:add(f.round, field(tvb, "round"))
  tree:add(f.parity, field(tvb, "round"), round % 2):set_generated()
  if cell % 2 ~= round % 2 then
    cell_item:add_proto_expert_info(e.parity)
  end
  local tensor = tree:add(f.tensor, field(tvb, "tensor"))
  tensor:add(f.signature, field(tvb, "tensor"):range(0, 2))
  tensor:add(f.sequence, field(tvb, "tensor"):range(2, 2))
  tree:add(f.chunk, field(tvb, "chunk"))
  tree:add(f.thread, thread(pinfo, kind)):set_generated()
  tree:add(f.seen, workers_seen(tvb, pinfo.number)):set_generated()
end

local function add_remarks(tvb, tree, kind)
  if has_flag(tvb, FLAG_RETRANSMISSION) and CONTRIBUTES[kind] then
    tree:add_proto_expert_info(e.again)
  end
  if has_flag(tvb, FLAG_DIVERGED) and kind == RESULT then
    tree:add_proto_expert_info(e.diverged)
  end
  if kind == MISSING then
    tree:add_proto_expert_info(e.missing)
  end
end

local function summary(tvb, kind, words)
  local cell, round = field(tvb, "cell"):uint(), field(tvb, "round"):uint()
  local text = string.format(
    "%s round %u (%s) slot %d, job %d", KINDS[kind] or "kind " .. kind, round, PARITIES[round % 2], math.floor(cell / 2),
    field(tvb, "job"):uint())
  -- A RESULT has the number of the worker that completed the round, and not that of its receiver.
  if kind ~= RESULT then
    text = text .. ", worker " .. field(tvb, "worker"):uint()
  end
  if words > 0 then
    text = text .. ", " .. words .. " words"
  end
  if has_flag(tvb, FLAG_RETRANSMISSION) and CONTRIBUTES[kind] then
    text = text .. ", sent again"
  end
  return text
end

function wiresum.dissector(tvb, pinfo, root)
  pinfo.cols.protocol = "WIRESUM"
  local tree = root:add(wiresum, tvb())
  if tvb:len() < HEADER_BYTES then
    tree:add_proto_expert_info(e.truncated)
    pinfo.cols.info = "Truncated: " .. tvb:len() .. " bytes"
    return
  end
  local kind = field(tvb, "kind"):bitfield(4, 4)
  add_header(tvb, pinfo, tree, kind)
  add_remarks(tvb, tree, kind)
  local text = summary(tvb, kind, add_words(tvb, tree, kind))
  pinfo.cols.info = text
  tree:append_text(": " .. text)
end

local ports

local function listen()
  local wanted = wiresum.prefs.port .. "-" .. wiresum.prefs.port + THREADS_MAX - 1
  if wanted ~= ports then
    local udp = DissectorTable.get("udp.port")
    if ports then
      udp:remove(ports, wiresum)
    end
    udp:add(wanted, wiresum)
    ports = wanted
  end
end

listen()
wiresum.prefs_changed = listen
