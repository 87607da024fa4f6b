"""The training loop: steps, validation and checkpoints, with every step recorded.

Everything that the next step depends on is in the checkpoint (`TrainingState`): a resumed training takes the
same steps as one that was never interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.amp import GradScaler

from laptime.errors import TrainingError
from laptime.files.text import first_line
from laptime.model import Stage
from laptime.recorder.recorder import Recorder, Resumed
from laptime.runs import Run, load
from laptime.training import checkpoint
from laptime.training.build import Ready
from laptime.training.config import Config
from laptime.training.device_setup import DeviceSetup
from laptime.training.failures import UNFIT, Interruption, does_not_fit, understood
from laptime.training.gradient_exchange import Exchange, parallel
from laptime.training.loss_readback import LossReadback
from laptime.training.objectives import Batch, Moment, StepLoss, top_n
from laptime.training.stop_barrier import StopBarrier
from laptime.training.training_state import Counts, TrainingState

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The state of the training after a step, for a progress bar."""

    stage: Stage
    step: int  # training steps so far
    steps: int  # training steps in all
    epoch: int
    epochs: int
    loss: float | None  # of this step or a little earlier; None where none has been read back yet


class TrainingLoop:
    """One training on one rank."""

    def __init__(
        self,
        config: Config,
        ready: Ready,
        *,
        out: Path,
        resume: bool = False,
        watch: Callable[[Progress], None] = lambda _: None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.config, self.out = config, out
        self._ready, self._watch, self._say = ready, watch, say
        self._ranks, self._device = ready.setup.ranks, ready.setup.device
        self._counts = Counts()
        self._scaler = GradScaler(self._device.type, enabled=config.train.precision == "fp16")
        self._scheduled = config.schedule.name != "constant" or config.schedule.warmup_steps > 0
        self._interruption = Interruption(say)
        self._barrier: StopBarrier | None = None
        self._checkpoint_fails = False
        self._tried = False  # whether a first batch has passed through the network
        self._readback = LossReadback(self._device)
        self._exchange = Exchange(self._ranks.ranks, self._device)
        # The network as the recorder and validation see it, and as training calls it.
        self._network = ready.network
        if config.train.compile:
            self._network = torch.compile(ready.network)  # type: ignore[assignment]
        self._called = self._network
        if self._ranks.several:
            self._called = parallel(self._network, self._exchange, self._device, groups=len(ready.optimizers))
        self._random: dict[str, Any] | None = None
        self._state = TrainingState(config=config, ready=ready, scaler=self._scaler)
        if resume:
            state = checkpoint.load(out / checkpoint.FOLDER / checkpoint.LAST)
            self._counts, self._random = self._state.restore(state, out)
            self._counts.attempt = max(self._ranks.gather(self._next_attempt()))

    def _next_attempt(self) -> int:
        """One more than the run has: a checkpoint can be resumed several times."""
        return max(self._counts.attempt, load(self.out).last_attempt + 1)

    @property
    def setup(self) -> DeviceSetup:
        """The device, why it was chosen, and the ranks."""
        return self._ready.setup

    # -- start to end ----------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether all steps are done."""
        return self._counts.step >= self.steps or self._counts.epoch >= self.config.train.epochs

    @property
    def epoch_steps(self) -> int:
        """Training steps in an epoch."""
        return self._ready.batches.order.batches

    @property
    def steps(self) -> int:
        """Training steps in all."""
        whole = self.config.train.epochs * self.epoch_steps
        return min(whole, self.config.train.steps or whole)

    def run(self) -> Run:
        """Train to the end, or until an error or a signal. The run on disk is kept in any case."""
        recorder = self._recorder()
        with self._interruption.awaited(), recorder:
            try:
                with self._agreed():
                    self._epochs(recorder)
            except RuntimeError as error:
                told = understood(error, self.config.train, self._device)
                if told is None:
                    raise
                raise told from error
            finally:
                self._finish(recorder)
        return recorder.run

    def _agreed(self) -> AbstractContextManager[None]:
        """Ranks stop together."""
        if not self._ranks.several:
            return nullcontext()
        self._barrier = StopBarrier(self._ranks)
        return self._barrier.open()

    def _recorder(self) -> Recorder:
        asked, counts = self.config.record, self._counts
        resumed = None
        if counts.attempt:
            resumed = Resumed(
                attempt=counts.attempt,
                step=counts.recorded,
                optimizer_step=counts.updates,
                elapsed_s=counts.elapsed_s,
            )
        elif self._ranks.rank and self._ranks.several:
            self._ranks.wait()  # rank 0 makes the directory
        layers: Any = int(asked.layers) if asked.layers.isdigit() else asked.layers
        return Recorder(
            self._network,
            list(self._ready.optimizers.values()),
            out=self.out,
            every_step=True,
            layers=layers if asked.profile else None,
            kernels=asked.kernels,
            config=self._document(),
            rank=self._ranks.rank,
            resumed=resumed,
            tell=None if self._ranks.rank else self._say,
        )

    def _document(self) -> dict[str, Any]:
        return {
            "command": "train",
            **self.config.model_dump(mode="json"),
            "ranks": self._ranks.ranks,
            "device": f"{self._device} ({self._ready.setup.why})",
            "samples": self._ready.samples,
            "classes": list(self._ready.data.classes),
            **{f"data_{key}": value for key, value in self._ready.data.facts.items()},
        }

    def _epochs(self, recorder: Recorder) -> None:
        train = self.config.train
        if self._counts.attempt:
            recorder.update(config=self._document())  # what may have changed since
        elif self._ranks.several and not self._ranks.rank:
            self._ranks.wait()
        if self._random is not None:
            checkpoint.set_random_states(self._random)
        while self._counts.epoch < train.epochs and self._counts.step < self.steps:
            self._train_epoch(recorder)
            whole = self._counts.batch >= self.epoch_steps
            ended = self._counts.epoch + 1 >= train.epochs or self._counts.step >= self.steps
            loss = self._validate(recorder, final=ended) if whole or ended else None
            if whole:
                self._counts.epoch, self._counts.batch = self._counts.epoch + 1, 0
            due = self.config.checkpoint.every and self._counts.epoch % self.config.checkpoint.every == 0
            if ended or due:
                self._save(recorder, loss)
        if self._ranks.several:
            exchanged = self._ranks.gather(self._exchange.document())
            recorder.update(
                summary={"communication": {str(rank): traffic for rank, traffic in enumerate(exchanged)}}
            )

    def _finish(self, recorder: Recorder) -> None:
        self._ready.batches.close()
        if self._ready.validation is not None:
            self._ready.validation.close()
        for problem in self._ready.data.problems():
            recorder.note(problem)

    # -- training --------------------------------------------------------------------------------------------

    def _train_epoch(self, recorder: Recorder) -> None:
        counts = self._counts
        self._called.train()
        batches = self._between(self._ready.batches.epoch(counts.epoch, first=counts.batch), recorder)
        for batch in recorder.steps(batches, stage=Stage.TRAIN, epoch=counts.epoch):
            part = self._step(batch) if self._tried else self._first_step(batch)
            self._log(recorder, part)
            counts.batch += 1
            counts.step += 1
            counts.recorded += 1
            loss = self._look(part)
            self._watch(self._progress(Stage.TRAIN, loss))
            if counts.step >= self.steps:
                break
        self._checked(wait=True)

    def _between(self, batches: Iterator[Batch], recorder: Recorder) -> Iterator[Batch]:
        """The batches. Checkpoints and stops come between two steps, after the first has been recorded."""
        every, began = self.config.checkpoint.every_steps, self._counts.step
        alone = self._barrier is None
        while True:
            step = self._counts.step
            if alone and self._interruption.asked:
                self._stop(recorder)
            if every and step % every == 0 and step > began:
                with recorder.account("host"):
                    self._save(recorder, None)
            batch = next(batches, None)
            if batch is None:
                return
            # Only where another step follows: at the end of an epoch all ranks validate first.
            if not alone and not self._may_begin(step + 1):
                self._stop(recorder)
            yield batch

    def _may_begin(self, step: int) -> bool:
        assert self._barrier is not None
        return self._barrier.may_begin(step, asked=self._interruption.asked)

    def _stop(self, recorder: Recorder) -> NoReturn:
        with recorder.account("host"):
            self._save(recorder, None)
        raise self._interruption.ending

    def _first_step(self, batch: Batch) -> StepLoss:
        """The first step. If it fails, the data does not fit the network."""
        try:
            part = self._step(batch)
        except UNFIT as error:
            if isinstance(error, RuntimeError) and understood(error, self.config.train, self._device):
                raise
            data, network = self._ready.data, self.config.network.name
            raise does_not_fit(error, network, batch, data.classes) from error
        self._tried = True
        return part

    def _step(self, batch: Batch) -> StepLoss:
        """One batch: each loss of the objective, its gradient, and its update if one is due."""
        train, counts = self.config.train, self._counts
        moment = Moment(epoch=counts.epoch, epochs=train.epochs, step=counts.step)
        due = (counts.batch + 1) % train.accumulate == 0 or counts.batch + 1 >= self.epoch_steps
        parts = self._ready.objective.parts(self._called, self._shaped(batch), moment)
        told: StepLoss | None = None
        while True:
            with self._unsynchronised(due), self._autocast():
                part = next(parts, None)
                if part is None:
                    break
            with self._unsynchronised(due):
                loss = part.loss / train.accumulate if train.accumulate > 1 else part.loss
                self._scaler.scale(loss).backward()
            if due:
                self._update(part.group)
            told = told or part
        assert told is not None, "an objective yields at least one part"
        if due:
            self._scaler.update()
            counts.updates += 1
        self._exchange.end_step()
        return told

    def _update(self, group: str) -> None:
        optimizer = self._ready.optimizers[group]
        if self.config.train.clip is not None:
            self._scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(self._ready.groups[group], self.config.train.clip)
        self._scaler.step(optimizer)
        optimizer.zero_grad()
        if self._scheduled:
            self._ready.schedules[group].step()

    def _autocast(self) -> AbstractContextManager[Any]:
        dtype = DTYPES.get(self.config.train.precision)
        return torch.autocast(self._device.type, dtype=dtype) if dtype is not None else nullcontext()

    def _unsynchronised(self, due: bool) -> AbstractContextManager[Any]:
        """Without gradient exchange between ranks, for steps that only accumulate gradients."""
        return self._called.no_sync() if self._ranks.several and not due else nullcontext()  # type: ignore[operator]

    def _shaped(self, batch: Batch) -> Batch:
        if not self.config.train.channels_last:
            return batch
        first = batch[0]
        if isinstance(first, Tensor) and first.dim() == 4:
            first = first.contiguous(memory_format=torch.channels_last)
        return (first, *batch[1:])

    def _log(self, recorder: Recorder, part: StepLoss) -> None:
        values: dict[str, Any] = {"loss": part.loss.detach()}
        if part.scores is not None and part.targets is not None:
            known = cache(partial(top_n, part.scores, part.targets, self.config.validation.topn))
            if (
                self._device.type == "cpu"
            ):  # computed later in the writer thread, many steps at once: a quarter of the time
                values["top1"], values["topn"] = lambda: known()[0], lambda: known()[1]
            else:  # keeping the scores of many steps would fill the device's memory
                values["top1"], values["topn"] = known()
        recorder.log(**values)

    def _look(self, part: StepLoss) -> float | None:
        """The latest loss that has been read back; NaN ends the training unless configured otherwise."""
        self._readback.take(self._counts.step - 1, part.loss)
        return self._checked(wait=False)

    def _checked(self, *, wait: bool) -> float | None:
        step, loss = self._readback.known(wait=wait)
        if loss is not None and loss != loss and self.config.train.on_nan == "stop":
            raise TrainingError(
                f"the loss is no number at step {step}: lower optimizer.lr, set train.clip, "
                "or use train.on_nan = 'go-on'; the run is kept"
            )
        return loss

    def _progress(self, stage: Stage, loss: float | None) -> Progress:
        counts = self._counts
        return Progress(
            stage=stage,
            step=counts.step,
            steps=self.steps,
            epoch=counts.epoch,
            epochs=self.config.train.epochs,
            loss=loss,
        )

    # -- validation ------------------------------------------------------------------------------------------

    def _validate(self, recorder: Recorder, *, final: bool) -> float | None:
        """The mean loss over the held-out data, if a validation is due."""
        every, batches = self.config.validation.every, self._ready.validation
        if batches is None or not every or ((self._counts.epoch + 1) % every and not final):
            return None
        self._called.eval()
        judged: list[Tensor] = []
        sizes: list[int] = []
        steps = recorder.steps(batches.epoch(0), stage=Stage.VALIDATION, epoch=self._counts.epoch)
        for batch in steps:
            with torch.no_grad(), self._autocast():
                part = self._ready.objective.judge(self._network, self._shaped(batch))
            self._log(recorder, part)
            judged.append(part.loss.detach())
            sizes.append(len(batch[0]))
            self._counts.recorded += 1
            self._watch(self._progress(Stage.VALIDATION, None))
        if not judged:
            return None
        weights = torch.tensor(sizes, dtype=torch.float64)
        losses = torch.stack(judged).double().cpu()
        (mean,) = self._ranks.mean([float((losses * weights).sum() / weights.sum())])
        return mean

    # -- checkpoints -----------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything that the next step depends on."""
        return self._state.collect(self._counts)

    def _save(self, recorder: Recorder, loss: float | None) -> None:
        """Write a checkpoint. If that fails, say so once and go on training."""
        recorder.flush()  # the steps before a checkpoint are on disk before the checkpoint is
        self._counts.elapsed_s = recorder.elapsed_s
        best = self.config.checkpoint.best and loss is not None and loss < self._counts.best
        if best and loss is not None:
            self._counts.best = loss
        state = self.state()
        if self._ranks.rank:
            return
        folder = self.out / checkpoint.FOLDER
        try:
            checkpoint.save(folder / checkpoint.LAST, state)
            if best:
                checkpoint.save(folder / checkpoint.BEST, state)
        except (OSError, RuntimeError) as error:
            recorder.checkpoint_failed(first_line(error))
            if not self._checkpoint_fails:
                self._checkpoint_fails = True
                before = (
                    "the one before stays" if (folder / checkpoint.LAST).exists() else "there is none yet"
                )
                reason = first_line(error)
                self._say(f"a checkpoint could not be written ({reason}); training goes on, {before}")
            return
        recorder.update(outputs={"checkpoint": checkpoint.FOLDER})
