"""The loaded layers of a range, as a node runs them: one step at a time, cached or stateless.

    ids ----------\\                                    /-> activation      (stop < total)
                   > check -> layers [c, d) of [a, b) -<
    activation ---/                                    \\-> sampled token   (stop == total)

Invariants
    * a step is checked whole before a cache is touched; after that, a failure is StepTorn and
      the state refuses every further step;
    * only layers [c, d) run, and a state holds the caches of its own [c, d) only;
    * what a shard cannot do it found out itself (selftest.py, the check after the first prefill),
      and its description says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, chain, pairwise
from typing import Any, cast

import torch
from torch import Tensor

from meshnet.core.protocol.drafts import verified
from meshnet.core.vocabulary import (
    Activation,
    BadField,
    Drawn,
    GrammarError,
    KVCacheMiss,
    LayerRange,
    MeshnetError,
    MissReason,
    NumericalError,
    SampledToken,
    SamplingParams,
    ShardDescription,
    ShardStep,
    StepTorn,
    WrongShard,
)
from meshnet.engine.activations import ActivationForm, packed, unpacked
from meshnet.engine.cache import unfilled_layers
from meshnet.engine.grammar import Grammars, check_grammar
from meshnet.engine.heap import is_out_of_memory
from meshnet.engine.history import History
from meshnet.engine.moving import MovesSessions
from meshnet.engine.rotary import RotaryLimit
from meshnet.engine.runner import Passing, Runner, Segment, joined, positions_of, side_by_side
from meshnet.engine.sampling import Sampler, check_ids
from meshnet.engine.session_state import SessionState

Result = Activation | Drawn | None
"""What leaves a shard: at the model's last layer what was drawn, or None if nothing was wanted."""
Report = Callable[[str], None]
"""Takes one sentence about something a shard cannot do."""


Work = tuple[ShardStep, SessionState | None]
Output = Tensor | Passing | None
"""Logits RV of the rows a step draws from; else what leaves its layers, or None at a tail."""


class TorchModelShard(MovesSessions):
    """Layers [a, b) of a causal language model. Blocking; runs on one thread at a time.

    `kv_sessions` is ADR-0022's name for the sessions cached on this shard. The store is the
    node's; the composition root hangs it here, and the shard never touches it.
    """

    def __init__(
        self,
        runner: Runner,
        description: ShardDescription,
        *,
        rotary: RotaryLimit | None,
        continues: bool,
        report: Report,
        token_text: Callable[[int], str],
        grammars: Grammars | None = None,
    ) -> None:
        self.kv_sessions: object | None = None
        self._runner = runner
        self._description = description
        self._rotary = rotary
        self._continues = continues
        self._report = report
        self._token_text = token_text
        self._grammars = grammars
        self._sampler = Sampler(grammars)
        self._fill_checked = False
        self._form = ActivationForm(
            runner.leading_axes, runner.hidden_size, runner.per_layer_width, runner.total
        )

    @property
    def description(self) -> ShardDescription:
        return self._description

    @property
    def supports_kv_cache(self) -> bool:
        """Whether sessions may be cached here (ADR-0022); False means stateless, for good."""
        return self._description.capabilities.kv_cache

    def new_state(self, layers: LayerRange) -> SessionState:
        """Empty state for a session that runs `layers` here. Raises WrongShard."""
        self._check_held(layers)
        return SessionState(self._runner.new_cache(layers), layers)

    def state_bytes(self, state: SessionState) -> int:
        return state.nbytes

    def truncate(self, state: SessionState, length: int) -> None:
        """Forget the positions from `length` on. Raises KVCacheMiss if this cache cannot."""
        if not state.cache.can_truncate(length):
            raise KVCacheMiss(
                MissReason.PAST_LENGTH,
                f"a session of {state.length} positions cannot be shortened to {length}",
            )
        with torch.inference_mode():  # what it takes back is overwritten
            state.truncate(length)

    def text_of(self, token_id: int) -> str:
        return self._token_text(token_id)

    def run(self, step: ShardStep, state: SessionState | None) -> Result:
        """Run one step, extending `state` in place; without one, `step` is the whole sequence.

        Returns:
            What leaves the last layer of the step; at the model's last layer what was drawn, or
            None if nothing was wanted.

        Raises:
            WrongShard: the layers are not held here.
            BadField: the step does not fit the model; `state` is untouched.
            KVCacheMiss: `state` cannot be extended by this step; it is untouched.
            StepTorn: failed after layers may have grown. `state` must not be used again.
            NumericalError: NaN or infinity. `state` must not be used again.
        """
        self._check(step, state)
        with torch.inference_mode():
            (output,) = self._advanced([(step, state)], self._entering(step))
            return self._finished(output, step, state)

    def run_batch(
        self, work: Sequence[tuple[ShardStep, SessionState]]
    ) -> list[Result | MeshnetError]:
        """Run steps of several sessions through the same layers, each as `run` would.

        What is wrong with one step is its result, and the others run; in one forward where the
        description promises to, else one by one. So they do, too, where memory did not suffice for
        all of them and what they wrote can be taken back.

        Raises:
            StepTorn: failed after layers may have grown. None of the states may be used again.
        """
        assert len({id(state) for _, state in work}) == len(work), "two steps of one session"
        assert len({step.layers for step, _ in work}) == 1, "steps through unlike layers"
        if self._rotary is not None or not self._description.capabilities.batch:
            return [self._alone(step, state) for step, state in work]
        whole = [not state.torn for _, state in work]
        try:
            return self._merged(work)
        except StepTorn as torn:
            if not torn.out_of_memory or not self._description.capabilities.truncate:
                raise
            error = torn.without_frames()
        with torch.inference_mode():
            undone = [was and state.undo() for was, (_, state) in zip(whole, work, strict=True)]
        return [
            self._alone(step, state) if again else error
            for again, (step, state) in zip(undone, work, strict=True)
        ]

    def _merged(
        self, work: Sequence[tuple[ShardStep, SessionState]]
    ) -> list[Result | MeshnetError]:
        """Run the steps in one forward. Raises StepTorn."""
        results: list[Result | MeshnetError] = [None] * len(work)
        with torch.inference_mode():
            entering: dict[int, Tensor | Passing] = {}
            for index, (step, state) in enumerate(work):
                try:
                    self._check(step, state)
                    entering[index] = self._entering(step)
                except MeshnetError as error:
                    results[index] = error.without_frames()
            sound = [work[index] for index in entering]
            outputs = self._advanced(sound, side_by_side(entering.values())) if sound else []
            for index, output in zip(entering, outputs, strict=True):
                try:
                    results[index] = self._finished(output, *work[index])
                except (NumericalError, GrammarError) as error:
                    results[index] = error.without_frames()
        return results

    def _check(self, step: ShardStep, state: SessionState | None) -> None:
        self._check_held(step.layers)
        stop = step.past_length + step.length
        limit = self._description.context_length
        if step.length < 1 or step.past_length < 0 or stop > limit:
            raise BadField("positions", f"1 to {limit} in all", (step.past_length, step.length))
        if step.tokens or step.layers.start == 0:
            self._check_tokens(step, None if state is None else state.history)
        if step.layers.start > 0:
            if step.activation is None:
                raise BadField("activation", f"hidden states entering layers {step.layers}", None)
            self._form.check(step.activation, step.layers, step.length)
        if state is None:
            if step.past_length:
                raise BadField("past_length", "0 for a stateless step", step.past_length)
        else:
            self._check_state(step, state)

    def _check_tokens(self, step: ShardStep, history: History | None) -> None:
        if len(step.tokens) != step.length:
            raise BadField("tokens", f"{step.length} ids", len(step.tokens))
        vocab_size = self._runner.vocab_size
        if min(step.tokens) < 0 or max(step.tokens) >= vocab_size:
            raise BadField("tokens", f"ids below {vocab_size}", step.tokens[:8])
        check_ids(step.sampling, vocab_size)
        known = history is not None and history.follows(step.sampling)
        if step.sampling.grammar and self._draws(step) and not known:
            check_grammar(step.sampling.grammar, self._grammars)

    def _check_held(self, layers: LayerRange) -> None:
        held = self._runner.held
        if not held.holds(layers):
            raise WrongShard(f"layers {layers}: this shard holds {held}")
        for run in self._description.inseparable:
            if layers.start < run.stop and run.start < layers.stop and not layers.holds(run):
                raise WrongShard(f"layers {layers} cut layers {run}, which share their K/V")

    def _check_state(self, step: ShardStep, state: SessionState) -> None:
        if state.torn:
            raise StepTorn("an earlier step of this session failed midway")
        if step.past_length and not self.supports_kv_cache:
            raise KVCacheMiss(MissReason.CACHING_OFF, "this shard cannot cache")
        if state.layers != step.layers:
            raise KVCacheMiss(
                MissReason.START_LAYER, f"expected layers {state.layers}, got {step.layers}"
            )
        if state.length != step.past_length:
            raise KVCacheMiss(
                MissReason.PAST_LENGTH,
                f"expected {step.past_length} positions, session holds {state.length}",
            )
        stop = step.past_length + step.length
        if self._rotary is not None and self._rotary.forbids(step.past_length, stop):
            raise KVCacheMiss(
                self._rotary.reason,
                f"rotary factors change beyond {self._rotary.length} positions",
            )

    def _entering(self, step: ShardStep) -> Tensor | Passing:
        if step.layers.start == 0:
            return torch.tensor([step.tokens], device=self._runner.device)
        assert step.activation is not None
        return unpacked(step.activation, self._runner.dtype, self._runner.device)

    def _alone(self, step: ShardStep, state: SessionState) -> Result | MeshnetError:
        try:
            return self.run(step, state)
        except MeshnetError as error:
            return error.without_frames()

    def _advanced(self, work: Sequence[Work], entering: Tensor | Passing) -> list[Output]:
        """Run the layers over the rows of all steps."""
        try:
            for step, state in work:
                if state is not None and self._description.capabilities.marks:
                    state.begin(step)
            return self._forward(work, entering)
        # The model's code is not ours and may raise anything, and its layers have grown by then.
        except Exception as error:
            for _, state in work:
                if state is not None:
                    state.torn = True
            raise StepTorn(
                f"layers {work[0][0].layers} failed: {error}",
                out_of_memory=is_out_of_memory(error),
            ) from error

    def _forward(self, work: Sequence[Work], entering: Tensor | Passing) -> list[Output]:
        first, state = work[0]
        layers = first.layers
        if first.past_length and first.length > 1 and not self._continues:
            cache = None if state is None else state.cache
            return [self._one_by_one(entering, first, cache, draws=self._draws(first))]
        if len(work) == 1:
            return [self._at_once(entering, first, state)]
        segments = [
            Segment(step.past_length, step.length, None if state is None else state.cache)
            for step, state in work
        ]
        stops = list(accumulate(step.length for step, _ in work))
        rows = [
            range(stop - 1 - step.drafts, stop) if self._draws(step) else range(0)
            for (step, _), stop in zip(work, stops, strict=True)
        ]
        if not any(rows):
            passing = self._runner.passing(entering, layers, segments)
            bounds = pairwise([0, *stops])
            return [cast(Passing, positions_of(passing, *each)) for each in bounds]
        logits_RV = self._runner.logits(entering, layers, segments, list(chain(*rows)))
        ends = list(accumulate(map(len, rows), initial=0))
        return [logits_RV[start:end] if end > start else None for start, end in pairwise(ends)]

    def _at_once(
        self, entering: Tensor | Passing, step: ShardStep, state: SessionState | None
    ) -> Tensor | Passing:
        segments = (Segment(step.past_length, step.length, None if state is None else state.cache),)
        if not self._draws(step):
            return self._runner.passing(entering, step.layers, segments)
        rows = list(range(step.length - 1 - step.drafts, step.length))
        return self._runner.logits(entering, step.layers, segments, rows)

    def _draws(self, step: ShardStep) -> bool:
        return step.want_token and step.layers.stop == self._runner.total

    def _finished(self, output: Output, step: ShardStep, state: SessionState | None) -> Result:
        """Note what a step did, and make of its output what leaves the shard."""
        if state is not None:
            self._settle(step, state)
        if isinstance(output, Tensor):
            return self._verified(output, step, state)
        is_tail = step.layers.stop == self._runner.total
        return None if output is None or is_tail else packed(output)

    def _one_by_one(
        self, entering: Tensor | Passing, step: ShardStep, cache: Any, *, draws: bool
    ) -> Tensor | Passing:
        outputs, logits = [], []
        for index in range(step.length):
            position = positions_of(entering, index, index + 1)
            segments = [Segment(step.past_length + index, 1, cache)]
            if draws and index >= step.length - 1 - step.drafts:
                logits.append(self._runner.logits(position, step.layers, segments, [0]))
            else:
                outputs.append(self._runner.passing(position, step.layers, segments))
        return torch.cat(logits) if draws else joined(outputs)

    def _settle(self, step: ShardStep, state: SessionState) -> None:
        """Note that every layer has seen the step's positions."""
        if not self._fill_checked and step.past_length == 0:
            self._fill_checked = True
            empty = unfilled_layers(state.cache)
            if empty:
                self._stop_caching(f"layers {empty} hold nothing after a prefill: no KV cache")
        state.length = step.past_length + step.length
        if self._description.capabilities.marks:
            state.end(step)
        if len(step.tokens) == step.length and state.history is not None:
            state.history.extend(step.tokens[: step.length - step.drafts])
        else:
            state.history = None

    def _stop_caching(self, why: str) -> None:
        self._report(why)
        capabilities = replace(self._description.capabilities, kv_cache=False, multi_token=False)
        self._description = replace(self._description, capabilities=capabilities)

    def _verified(self, logits_RV: Tensor, step: ShardStep, state: SessionState | None) -> Drawn:
        """Draw, and judge the step's guesses; the history gets all of them in the end."""
        if not step.drafts:
            position = step.past_length + step.length
            return Drawn((self._drawn(logits_RV[0], position, step, state),))
        history = None if state is None else state.history
        sure = step.length - step.drafts
        guesses = step.tokens[sure:]

        def draw(count: int) -> SampledToken:
            if history is not None:
                history.extend(guesses[count - 1 : count])
            return self._drawn(logits_RV[count], step.past_length + sure + count, step, state)

        drawn = verified(guesses, draw)
        if history is not None:
            history.extend(guesses[len(drawn.tokens) - 1 :])
        return drawn

    def _drawn(
        self, logits_V: Tensor, position: int, step: ShardStep, state: SessionState | None
    ) -> SampledToken:
        history = History(step.tokens) if state is None else state.history
        sampling = step.sampling if history else SamplingParams(logprobs=step.sampling.logprobs)
        try:
            if not history and (step.sampling.grammar or step.sampling.forced):
                raise GrammarError("the answer's ids are missing: what it must be cannot be kept")
            # One number tells that all are finite; where it does not, they are looked at.
            if not math.isfinite(float(logits_V.sum())) and not torch.isfinite(logits_V).all():
                raise NumericalError("the logits hold NaN or infinity")
            return self._sampler.draw(logits_V, history or History(), sampling, position)
        except (NumericalError, GrammarError):
            if state is not None:
                state.torn = True
            raise
