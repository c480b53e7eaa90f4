"""A naive tree: sets and paths, everything recomputed from scratch at every step.

It shares no code with the reference model and knows nothing of slots' bit maps, pointers or scans;
only tie-breaking needs the tree-slot numbers, which it takes from a set of free ones.
"""

from dfvg_hw.messages import Close, HitClass, Open, Resync, Retune, Verdict, context_hash


class Node:
    def __init__(self, parent, token, edge, node_id, rank):
        self.parent, self.token, self.edge, self.id, self.rank = parent, token, edge, node_id, rank
        self.slot = self.kv = None
        self.children = None  # None: not known yet
        self.stop = False

    def path(self):
        """Nodes from the root down to this one."""
        return [self] if self.parent is None else [*self.parent.path(), self]

    def below(self):
        """Everything from this node down."""
        return [self] + [n for c in self.children or () for n in c.below()]


class Sequence:
    def __init__(self, command, seq):
        self.seq = seq
        self.tokens = list(command.tokens)
        self.kv = {}  # position -> (page, offset) of committed tokens
        self.prompt = len(self.tokens)
        self.limits, self.stops, self.epoch = command.limits, command.stops, command.epoch
        self.next_id = 1
        self.state = "open"
        self.root = Node(None, self.tokens[-1], 0, 0x8000_0000 | len(self.tokens), 0)
        self.root.slot = seq
        self.pages = []

    def nodes(self):
        return [n for n in self.root.below() if n.slot is not None]

    def used(self):
        tree = {n.kv for n in self.nodes() if n.kv is not None}
        return tree | set(self.kv.values())

    def pending(self):
        return [p for p in range(len(self.tokens)) if p not in self.kv]

    def score(self, node):
        return sum(n.edge for n in node.path()[1:])

    def depth(self, node):
        return len(node.path()) - 1


class NaiveTree:
    def __init__(self, config, vocabulary):
        self.config, self.vocabulary = config, vocabulary
        self.sequences = [None] * config.max_seqs
        self.turn = 0
        self.passes = 0
        self.running = None
        self.log = []

    def take_log(self):
        log, self.log = self.log, []
        return log

    # Commands

    def apply(self, command):
        seq = command.seq
        if isinstance(command, Open):
            if isinstance(command, Resync) and self.sequences[seq] is None:
                self.log.append(("event", 4, seq))
                return
            self.close(seq)
            sequence = self.sequences[seq] = Sequence(command, seq)
            self.log.append(("opened", seq, len(sequence.tokens), context_hash(sequence.tokens)))
            if len(sequence.tokens) > self.config.max_ctx:
                sequence.state = "full"
                self.log.append(("event", 1, seq))
        elif self.sequences[seq] is None:
            self.log.append(("event", 4, seq))
        elif isinstance(command, Close):
            self.close(seq)
        elif isinstance(command, Retune):
            self.sequences[seq].limits = command.limits
        elif isinstance(command, Verdict):
            self.verdict(self.sequences[seq], command)

    def close(self, seq):
        self.kill(seq, lambda row: True)
        self.sequences[seq] = None

    def kill(self, seq, useless):
        for row in self.running or ():
            if row["seq"] == seq and useless(row):
                row["kv_wanted"] = row["children_wanted"] = False

    def verdict(self, sequence, command):
        base = len(sequence.tokens)
        bad = None
        if sequence.state == "lost" or command.base_length != base:
            bad = 3
        elif command.context_hash != context_hash(sequence.tokens):
            bad = 2
        elif any(t >= self.vocabulary for t in command.tokens):
            bad = 5
        if bad:
            self.lose(sequence, "lost")
            self.log.append(("event", bad, sequence.seq))
            return
        sequence.epoch = command.epoch
        sequence.tokens += command.tokens
        if len(sequence.tokens) > self.config.max_ctx:
            if sequence.state != "full":
                self.log.append(("event", 1, sequence.seq))
            self.lose(sequence, "full")
            self.ack(sequence, HitClass.MISS, 0x8000_0000 | len(sequence.tokens), 0, 0)
            return
        self.follow(sequence, base, command.tokens)

    def lose(self, sequence, state):
        sequence.state = state
        self.kill(sequence.seq, lambda row: not row["committed"])
        for row in self.running or ():
            if row["seq"] == sequence.seq:
                row["children_wanted"] = False
        sequence.root = Node(None, 0, 0, 0, 0)

    def follow(self, sequence, base, tokens):
        node, outcome = sequence.root, HitClass.EXPANDED
        matched = 0
        for token in tokens:
            child = next((c for c in node.children or () if c.token == token), None)
            if child is None:
                outcome = HitClass.MISS
                break
            node = child
            matched += 1
            if child.slot is None:
                outcome = HitClass.LEAF
                break
        if outcome is HitClass.LEAF and matched < len(tokens):
            outcome = HitClass.MISS
        if outcome is HitClass.EXPANDED and node.children is None:
            outcome = HitClass.LEAF
        for position, step in enumerate(node.path(), base - 1):
            if step.kv is not None:
                sequence.kv[position] = step.kv
        on_tree = matched == len(tokens) and node.slot is not None
        keep = set(map(id, node.below())) if on_tree else set()
        path = set(map(id, node.path()))
        for row in self.running or ():
            if row["seq"] != sequence.seq or row["node"] is None:
                continue
            if id(row["node"]) in path:
                row["committed"] = True
            if id(row["node"]) not in keep:
                row["children_wanted"] = False
                row["kv_wanted"] &= row["committed"]
        if keep:
            node.parent = None
            sequence.root = node
        else:
            hit = outcome is HitClass.LEAF
            root_id = node.id if hit else 0x8000_0000 | len(sequence.tokens)
            sequence.root = Node(None, sequence.tokens[-1], 0, root_id, 0)
            sequence.root.slot = sequence.seq
        below = sequence.root.below()[1:]
        expanded = sum(n.slot is not None for n in below)
        self.ack(sequence, outcome, sequence.root.id, expanded, len(below) - expanded)

    def ack(self, sequence, hit, root_id, expanded, candidates):
        aborted = self.running is not None and self.all_dead()
        pending = len(sequence.pending()) if sequence.state == "open" else 0
        self.log.append(("ack", sequence.seq, int(hit), root_id, len(sequence.tokens), expanded,
                         candidates, pending, self.running is not None, aborted))  # fmt: skip

    # Passes

    def free_slots(self):
        held = {
            n.slot for s in self.sequences if s is not None and s.state == "open" for n in s.nodes()
        }
        return sorted(set(range(self.config.max_seqs, self.config.m_slots)) - held)

    def allocate(self, sequence):
        used = sequence.used()
        for page in range(len(sequence.pages)):
            for offset in range(64):
                if (page, offset) not in used:
                    return page, offset
        taken = {p for s in self.sequences if s is not None for p in s.pages}
        sequence.pages.append(min(set(range(self.config.pool_pages)) - taken))
        return len(sequence.pages) - 1, 0

    def eligible(self):
        found = []
        for sequence in self.sequences:
            if sequence is None or sequence.state != "open" or sequence.waiting:
                continue
            held = len(sequence.nodes()) - 1
            if held >= sequence.limits.max_slots:
                continue
            for node in sequence.root.below()[1:]:
                position = len(sequence.tokens) - 1 + sequence.depth(node)
                if (node.slot is None and not node.stop and node.rank < self.config.topk
                        and sequence.score(node) >= sequence.limits.threshold
                        and sequence.depth(node) <= sequence.limits.max_depth
                        and position < self.config.max_ctx):  # fmt: skip
                    key = (-sequence.score(node), node.parent.slot, node.rank)
                    found.append((key, sequence, node))
        return found

    def begin_pass(self):
        rows = []
        count = self.config.max_seqs
        for sequence in self.sequences:
            if sequence is not None:
                sequence.waiting = sequence.state == "open" and bool(sequence.pending())
        for step in range(count):
            sequence = self.sequences[(self.turn + step) % count]
            if sequence is None or sequence.state != "open":
                continue
            for position in sequence.pending()[: self.config.rows - len(rows)]:
                kv = self.allocate(sequence)
                sequence.kv[position] = kv
                last = position == len(sequence.tokens) - 1
                if last:
                    sequence.root.kv = kv
                kind = "prefill" if position < sequence.prompt else "catchup"
                seen = {sequence.kv[p] for p in range(position + 1)}
                rows.append(self.row(sequence, kind, sequence.tokens[position], position, kv,
                                     sequence.root if last else None, seen))  # fmt: skip
        if rows:
            self.turn = (self.turn + 1) % count
        while len(rows) < self.config.rows and self.free_slots():
            found = self.eligible()
            if not found:
                break
            _, sequence, node = min(found, key=lambda item: item[0])
            node.slot = self.free_slots()[0]
            node.kv = self.allocate(sequence)
            position = len(sequence.tokens) - 1 + sequence.depth(node)
            seen = set(sequence.kv.values()) | {n.kv for n in node.path()}
            rows.append(self.row(sequence, "growth", node.token, position, node.kv, node, seen))
        self.running = rows or None
        self.passes += bool(rows)
        return rows

    def row(self, sequence, kind, token, position, kv, node, seen):
        return {
            "seq": sequence.seq,
            "kind": kind,
            "token": token,
            "position": position,
            "kv": kv,
            "phys": sequence.pages[kv[0]],
            "slot": None if node is None else node.slot,
            "visible": frozenset(seen),
            "node": node,
            "wants_children": node is not None,
            "children_wanted": node is not None,
            "kv_wanted": True,
            "committed": kind != "growth",
        }

    def all_dead(self):
        return not any(r["kv_wanted"] or r["children_wanted"] for r in self.running)

    def end_pass(self, results):
        rows, self.running = self.running, None
        found = 0
        for index, row in enumerate(rows):
            if not row["children_wanted"]:
                continue
            sequence, node = self.sequences[row["seq"]], row["node"]
            kept = results[index][: min(sequence.limits.topk, self.config.topk)]
            node.children = []
            for rank, (token, edge) in enumerate(kept):
                child = Node(node, token, edge, sequence.next_id, rank)
                child.stop = token in sequence.stops
                sequence.next_id += 1
                node.children.append(child)
            found += len(kept)
            self.log.append(("nodes", row["seq"], node.id, node.children[0].id, tuple(kept)))
        return found
