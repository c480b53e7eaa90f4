"""The rules of docs/tree.md one by one, on trees small enough to read."""

import pytest

from dfvg_hw.config import PRESETS
from dfvg_hw.messages import (
    Close,
    DraftLimits,
    Event,
    EventCode,
    HitClass,
    Nodes,
    Open,
    Opened,
    PassKind,
    Resync,
    Retune,
    Verdict,
    VerdictAck,
    context_hash,
)
from dfvg_hw.tree import RowKind, TreeModel

TINY = PRESETS["tiny"]  # 4 rows, 16 tree slots, 4 children, 256 tokens, 2 sequences
WIDE = DraftLimits(threshold=-(1 << 20))


def opened(tokens=(1, 2, 3), limits=WIDE, stops=(), config=TINY):
    model = TreeModel(config, vocabulary=1000)
    model.apply(Open(0, tuple(tokens), 0, limits, stops))
    opened, *model.events = model.take_messages()
    assert opened == Opened(seq=0, epoch=0, length=len(tokens), context_hash=context_hash(tokens))
    return model


def children(first, *logprobs):
    """Children with consecutive tokens from `first`, log-probabilities as given."""
    return [(first + rank, logprob) for rank, logprob in enumerate(logprobs)]


def run(model, answers=None):
    """Run a pass; `answers` maps a row's token to its children. Returns rows and messages."""
    rows = model.begin_pass()
    wanting = [row for row in rows if row.want_children]
    default = {row.token: children(100 + 10 * row.token, -256, -512) for row in wanting}
    chosen = default | (answers or {})
    summary = model.end_pass({row.index: chosen[row.token] for row in wanting})
    return rows, model.take_messages(), summary


def verdict(model, *tokens, seq=0):
    sequence = model.sequences[seq]
    model.apply(
        Verdict(seq, sequence.epoch + 1, sequence.length, sequence.context_hash, tuple(tokens))
    )
    return model.take_messages()[-1]


class TestPrefill:
    def test_prompt_in_order_and_children_for_the_last_row_only(self):
        model = opened(range(1, 11))
        rows = [run(model, {10: children(20, -1)})[0] for _ in range(3)]
        assert [row.token for group in rows for row in group] == list(range(1, 11))
        flat = [row for group in rows for row in group]
        assert all(row.kind is RowKind.PREFILL for row in flat)
        assert [row.want_children for row in flat] == [False] * 9 + [True]
        assert [row.slot for row in flat] == [None] * 9 + [0]

    def test_rows_of_one_pass_are_causal(self):
        rows, _, _ = run(opened((5, 6, 7)))
        assert [row.visible for row in rows] == [(0b001,), (0b011,), (0b111,)]

    def test_root_is_named_after_its_length(self):
        _, messages, _ = run(opened((5, 6, 7)))
        assert messages[0].parent == 0x8000_0003
        assert messages[0].first_id == 1

    def test_sequences_take_turns_with_whole_passes(self):
        model = opened(range(1, 9))
        model.apply(Open(1, tuple(range(11, 19)), 0, WIDE))
        seqs = [{row.seq for row in run(model)[0]} for _ in range(4)]
        assert seqs == [{0}, {1}, {0}, {1}]

    def test_a_short_prompt_leaves_rows_to_the_other_sequence(self):
        model = opened((1, 2))
        model.apply(Open(1, (3, 4, 5), 0, WIDE))
        rows, _, _ = run(model)
        assert [(row.seq, row.token) for row in rows] == [(0, 1), (0, 2), (1, 3), (1, 4)]

    def test_growth_shares_a_pass_with_another_sequence_s_prompt(self):
        model = opened((1, 2))
        run(model)
        model.apply(Open(1, (3,), 0, WIDE))
        rows, _, summary = run(model, {3: children(30, -1)})
        assert [(row.seq, row.kind) for row in rows] == [
            (1, RowKind.PREFILL),
            (0, RowKind.GROWTH),
            (0, RowKind.GROWTH),
        ]
        assert summary.kind is PassKind.PREFILL
        assert (summary.prefill_rows, summary.growth_rows, summary.sequences) == (1, 2, 3)


class TestGrowth:
    def test_best_path_first(self):
        model = opened((1,))
        run(model, {1: children(10, -10, -300, -600, -1000)})
        run(model, {10: children(20, -100, -295, -296), 11: children(30, -1),
                    12: children(40, -1), 13: children(50, -1)})  # fmt: skip
        rows, _, _ = run(model)
        # Paths: 20 at -110, 30 at -301, 21 at -305, 22 at -306, then 40 and 50.
        assert [row.token for row in rows] == [20, 30, 21, 22]

    def test_ties_go_to_the_lower_parent_slot_then_the_lower_rank(self):
        model = opened((1,))
        run(model, {1: children(10, -100, -100)})
        rows, _, _ = run(model, {10: children(20, -50, -50), 11: children(30, -50, -50)})
        assert [(row.token, row.slot) for row in rows] == [(10, 2), (11, 3)]
        rows, _, _ = run(model)
        assert [row.token for row in rows] == [20, 21, 30, 31]

    def test_threshold_is_inclusive(self):
        model = opened((1,), DraftLimits(threshold=-200))
        run(model, {1: children(10, -100, -200, -201)})
        rows, _, _ = run(model, {10: children(20, -100, -101), 11: children(30, 0, -1)})
        assert [row.token for row in rows] == [10, 11]
        assert [row.token for row in run(model)[0]] == [20, 30]

    def test_depth_limit(self):
        model = opened((1,), DraftLimits(threshold=-(1 << 20), max_depth=1))
        run(model)
        assert run(model)[0]
        assert model.begin_pass() == ()

    def test_depth_0_expands_the_root_alone(self):
        model = opened((1,), DraftLimits(max_depth=0))
        _, messages, _ = run(model)
        assert messages[0].count == 2
        assert model.begin_pass() == ()

    def test_slot_limit_of_a_sequence(self):
        model = opened((1,), DraftLimits(threshold=-(1 << 20), max_slots=3))
        total = 0
        run(model)
        while rows := model.next_rows():
            total += len(rows)
            run(model)
        assert total == 3

    def test_growth_stops_when_all_slots_are_taken(self):
        model = opened((1,))
        total = 0
        run(model)
        while rows := model.next_rows():
            total += len(rows)
            run(model)
        assert total == TINY.m_slots - TINY.max_seqs

    def test_children_per_node(self):
        model = opened((1,), DraftLimits(topk=3))
        _, messages, _ = run(model, {1: children(10, -1, -2, -3, -4)})
        assert [c.token for c in messages[0].children] == [10, 11, 12]

    def test_stop_tokens_are_offered_but_not_expanded(self):
        model = opened((1,), stops=(10, 12))
        _, messages, _ = run(model, {1: children(10, -1, -2, -3, -4)})
        assert [c.token for c in messages[0].children] == [10, 11, 12, 13]
        assert [row.token for row in run(model)[0]] == [11, 13]

    def test_records_hold_five_children_each(self):
        config = TINY.replace(topk=8, candidates=128)
        model = opened((1,), config=config)
        _, messages, _ = run(model, {1: children(10, *range(-1, -9, -1))})
        assert [(m.count, m.flags, m.first_id) for m in messages] == [(5, 16, 1), (3, 5, 6)]

    def test_retune_holds_from_the_next_pass(self):
        model = opened((1,), DraftLimits(threshold=0))
        run(model)
        assert model.next_rows() == ()
        model.apply(Retune(0, WIDE))
        assert len(model.next_rows()) == 2

    def test_visible_are_context_ancestors_and_self(self):
        model = opened((1, 2))  # offsets 0 and 1
        run(model, {2: children(10, -1, -2)})
        rows, _, _ = run(model, {10: children(20, -1), 11: children(30, -1)})  # offsets 2 and 3
        assert [row.visible for row in rows] == [(0b0111,), (0b1011,)]
        rows, _, _ = run(model)
        assert [row.visible for row in rows] == [(0b010111,), (0b101011,)]


class TestVerdicts:
    def grown(self):
        """Root 1 with children 10, 11; both expanded: 20, 21 and 30, 31."""
        model = opened((1,))
        run(model, {1: children(10, -100, -200)})
        run(model, {10: children(20, -100, -200), 11: children(30, -100, -200)})
        return model

    def test_expanded(self):
        model = self.grown()
        ack = verdict(model, 10)
        assert (ack.hit, ack.root_id, ack.length) == (HitClass.EXPANDED, 1, 2)
        assert (ack.expanded, ack.candidates, ack.pending) == (0, 2, 0)
        rows, _, summary = run(model)
        assert [row.token for row in rows] == [20, 21]
        assert summary.kind is PassKind.GROWTH

    def test_leaf_becomes_one_catch_up_row(self):
        model = self.grown()
        ack = verdict(model, 10, 20)
        assert (ack.hit, ack.root_id, ack.pending) == (HitClass.LEAF, 3, 1)
        rows, messages, summary = run(model)
        assert [(row.token, row.position, row.kind) for row in rows] == [(20, 2, RowKind.CATCHUP)]
        assert rows[0].want_children
        assert messages[0].parent == 3
        assert summary.kind is PassKind.CATCHUP

    def test_miss(self):
        model = self.grown()
        ack = verdict(model, 10, 77)
        assert (ack.hit, ack.root_id, ack.pending) == (HitClass.MISS, 0x8000_0003, 1)
        assert (ack.expanded, ack.candidates) == (0, 0)

    def test_beyond_a_leaf_is_a_miss(self):
        model = self.grown()
        ack = verdict(model, 10, 20, 5)
        assert (ack.hit, ack.pending) == (HitClass.MISS, 2)
        assert [row.token for row in run(model, {5: children(6, -1)})[0]] == [20, 5]

    def test_no_tokens_change_nothing(self):
        model = self.grown()
        before = model.next_rows()
        ack = verdict(model)
        assert (ack.hit, ack.root_id, ack.expanded, ack.candidates) == (0, 0x8000_0001, 2, 4)
        assert model.next_rows() == before

    def test_scores_count_from_the_new_root(self):
        model = self.grown()
        model.apply(Retune(0, DraftLimits(threshold=-100)))
        assert model.next_rows() == ()
        verdict(model, 11)
        assert [row.token for row in model.next_rows()] == [30]

    def test_freed_kv_slots_are_used_again_lowest_first(self):
        model = self.grown()  # offsets: 1 -> 0, 10 -> 1, 11 -> 2
        verdict(model, 11)
        rows, _, _ = run(model)
        assert [(row.token, row.offset) for row in rows] == [(30, 1), (31, 3)]

    def test_context_is_kept_over_many_rounds(self):
        model = opened((1,))
        for token in range(2, 200):
            run(model, {t: children(t + 1, -1) for t in range(1, 300)})
            verdict(model, token)
        assert model.sequences[0].length == 199
        assert len(model.sequences[0].pages.phys) == 4

    def test_wrong_hash_stops_drafting_until_resync(self):
        model = self.grown()
        model.apply(Verdict(0, 9, 1, 123, (10,)))
        event = model.take_messages()[0]
        assert event == Event(code=EventCode.HASH_MISMATCH, seq=0, epoch=9,
                              info0=context_hash([1]), info1=123)  # fmt: skip
        assert model.next_rows() == ()
        model.apply(Verdict(0, 10, 1, context_hash([1]), (10,)))
        assert model.take_messages()[0].code == EventCode.LENGTH_MISMATCH
        model.apply(Resync(0, (1, 10)))
        assert [row.token for row in model.next_rows()] == [1, 10]


class TestVerdictsInAPass:
    def running(self):
        """Rows 10, 11 of root 1 are in the running pass."""
        model = opened((1,))
        run(model, {1: children(10, -100, -200)})
        model.begin_pass()
        return model

    def answers(self, model):
        return {0: children(20, -1), 1: children(30, -1)}

    def test_surviving_row_becomes_the_root(self):
        model = self.running()
        ack = verdict(model, 10)
        assert (ack.hit, ack.flags, ack.pending) == (HitClass.LEAF, 1, 0)
        summary = model.end_pass(self.answers(model))
        assert (summary.kind, summary.dropped, summary.children) == (PassKind.GROWTH, 1, 1)
        assert [row.token for row in model.next_rows()] == [20]

    def test_committed_row_s_kv_is_kept_when_the_walk_goes_beyond_it(self):
        model = self.running()
        ack = verdict(model, 10, 50)
        assert (ack.hit, ack.flags, ack.pending) == (HitClass.MISS, 1, 1)
        summary = model.end_pass(self.answers(model))
        assert (summary.kind, summary.dropped, summary.children) == (PassKind.GROWTH, 2, 0)
        (row,) = model.next_rows()
        assert (row.token, row.position) == (50, 2)
        assert row.visible == (0b111,)

    def test_useless_pass_is_aborted(self):
        model = self.running()
        ack = verdict(model, 99)
        assert ack.flags == 3
        assert model.aborted
        assert model.end_pass({}).kind is PassKind.ABORTED
        assert [row.token for row in model.next_rows()] == [99]

    def test_prompt_rows_always_finish(self):
        model = opened((1, 2))
        model.begin_pass()
        assert verdict(model, 3).flags == 1
        assert model.end_pass({1: children(3, -1)}).children == 0
        assert [row.token for row in model.next_rows()] == [3]

    def test_close_aborts(self):
        model = self.running()
        model.apply(Close(0))
        assert model.aborted
        model.apply(Open(0, (7,)))
        assert model.end_pass({}).kind is PassKind.ABORTED
        assert [row.token for row in model.next_rows()] == [7]


class TestLimits:
    def test_context_grows_to_its_limit_and_stops(self):
        config = TINY.replace(max_ctx=64)
        model = opened(range(1, 63), config=config)
        while not any(row.want_children for row in run(model)[0]):
            pass
        rows, _, _ = run(model)  # position 62: may run, and its children at 63 may, too
        assert {row.position for row in rows} == {62}
        rows, _, _ = run(model)
        assert {row.position for row in rows} == {63}
        assert model.next_rows() == ()
        ack = verdict(model, 500, 501)
        assert ack.length == 64
        assert len(run(model)[0]) == 2
        assert model.next_rows() == ()
        model.apply(Verdict(0, 9, 64, model.sequences[0].context_hash, (5,)))
        event, ack = model.take_messages()
        assert (event.code, event.info0) == (EventCode.CONTEXT_FULL, 65)
        assert (ack.hit, ack.length, ack.pending) == (HitClass.MISS, 65, 0)
        assert model.next_rows() == ()
        assert verdict(model, 6).length == 66

    def test_a_prompt_longer_than_the_context_is_followed_without_drafting(self):
        model = opened(range(257))
        assert model.events[0].code == EventCode.CONTEXT_FULL
        assert model.next_rows() == ()
        assert isinstance(verdict(model, 5), VerdictAck)

    def test_tokens_beyond_the_vocabulary_are_refused(self):
        model = TreeModel(TINY, vocabulary=1000)
        model.apply(Open(0, (1, 1000)))
        assert model.take_messages()[0].code == EventCode.BAD_MESSAGE
        assert model.next_rows() == ()

    @pytest.mark.parametrize("command", [Close(1), Resync(1, (1,)), Retune(1, WIDE)])
    def test_unknown_sequence(self, command):
        model = opened()
        model.apply(command)
        assert model.take_messages()[0].code == EventCode.UNKNOWN_SEQUENCE

    def test_sequence_out_of_range(self):
        model = opened()
        model.apply(Open(2, (1,)))
        assert model.take_messages()[0].code == EventCode.BAD_MESSAGE

    def test_pages_return_to_the_pool(self):
        model = opened(range(200))
        pages = TINY.pool_pages
        while not any(row.want_children for row in run(model)[0]):
            pass
        assert model.free_pages.bit_count() == pages - 4
        model.apply(Close(0))
        assert model.free_pages.bit_count() == pages

    def test_nodes_of_both_sequences_are_numbered_apart(self):
        model = opened((1,))
        model.apply(Open(1, (2,), 0, WIDE))
        _, messages, _ = run(model)
        nodes = [m for m in messages if isinstance(m, Nodes)]
        assert [(m.seq, m.parent, m.first_id) for m in nodes] == [
            (0, 0x8000_0001, 1),
            (1, 0x8000_0001, 1),
        ]
