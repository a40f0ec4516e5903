"""The reference kernel: torch autograd, Adam on one flat vector.

All parameters and gradients are views of two flat tensors, so that the norm, the clipping and the
optimizer are one call each, whatever the network.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mission_gym.data import ActionSpec, Array
from mission_gym.learner.kernel import (
    ADAM_BETAS,
    ADAM_EPSILON,
    ADVANTAGE_FLOOR,
    EpochStats,
    Samples,
    StepSettings,
    mean_stats,
)
from mission_gym.policy import Encoded, PolicySpec
from mission_gym.policy.sampling import FILLER, HALF_LOG_2PI, part_columns
from mission_gym.policy.torch_form import ActorCritic, Inputs, load_arrays, model_arrays

_EVALUATE_ROWS = 16_384  # rows per pass where there are images


class Distribution:
    """Log-probability and entropy of stored actions, for one action space."""

    def __init__(self, action: ActionSpec, device: torch.device) -> None:
        self.action = action
        columns = part_columns(action.nvec) if action.kind == "categories" else None
        self.columns = None if columns is None else torch.from_numpy(columns).to(device)

    def __call__(
        self, params: Tensor, log_std: Tensor | None, action: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """params [N, P], action [N, K], mask bool [N, M] -> log-probability [N], entropy [N]."""
        if self.action.kind == "box":
            assert log_std is not None
            z = (action - params) * torch.exp(-log_std)
            log_prob = (-0.5 * z.square() - log_std - HALF_LOG_2PI).sum(-1)
            return log_prob, (log_std + 0.5 + HALF_LOG_2PI).sum().expand(len(params))
        if self.action.kind == "binary":
            log_prob = -F.binary_cross_entropy_with_logits(params, action, reduction="none").sum(-1)
            entropy = F.softplus(params) - params * torch.sigmoid(params)
            return log_prob, entropy.sum(-1)
        if mask is not None:
            params = params.masked_fill(~mask, FILLER)
        log_p = F.log_softmax(self._parts(params), dim=-1)
        log_prob = log_p.gather(-1, action.unsqueeze(-1)).squeeze(-1).sum(-1)
        p = log_p.exp()
        # 0 log 0 = 0: a masked entry may hold -inf, which would make the product NaN.
        entropy = -(p * log_p.masked_fill(p == 0, 0.0)).sum((-1, -2))
        return log_prob, entropy

    def _parts(self, flat: Tensor) -> Tensor:
        if self.columns is None:
            return flat.view(len(flat), len(self.action.nvec), self.action.nvec[0])
        padded = F.pad(flat, (0, 1), value=FILLER)  # column -1 is the padding
        return padded[:, self.columns]


class TorchKernel:
    """See `kernel.Kernel`."""

    def __init__(self, spec: PolicySpec, seed: int, device: str = "cpu") -> None:
        self.device = torch.device(device)
        self.spec = spec
        self.model = ActorCritic(spec, seed).to(self.device)
        self.distribution = Distribution(spec.action, self.device)
        self._action_dtype = torch.int64 if spec.action.kind == "categories" else torch.float32
        self._names = {name: tuple(p.shape) for name, p in self.model.named_parameters() if p.requires_grad}
        self.flat, self.flat_grad = _flatten_parameters(self.model)
        self.adam = torch.optim.Adam(
            [self.flat], lr=0.0, betas=ADAM_BETAS, eps=ADAM_EPSILON, fused=self.device.type != "mps"
        )

    def evaluate(self, inputs: Encoded, action: Array, mask: Array | None) -> tuple[Array, Array]:
        flat, images = self._inputs(inputs)
        actions = self._tensor(action, self._action_dtype)
        masks = None if mask is None else self._tensor(mask, torch.bool)
        num = len(flat)
        rows = _EVALUATE_ROWS if images else num
        log_probs, values = [], []
        with torch.inference_mode():
            for start in range(0, num, max(rows, 1)):
                part = slice(start, start + rows)
                params, value = self.model((flat[part], tuple(image[part] for image in images)))
                values.append(value)
                acted = min(len(params), max(len(actions) - start, 0))
                if acted:
                    acted_rows = slice(start, start + acted)
                    log_prob, _ = self.distribution(
                        params[:acted],
                        self.model.log_std,
                        actions[acted_rows],
                        None if masks is None else masks[acted_rows],
                    )
                    log_probs.append(log_prob)
            return torch.cat(log_probs).float().cpu().numpy(), torch.cat(values).float().cpu().numpy()

    def load_samples(self, samples: Samples) -> None:
        self._samples_inputs = self._inputs(samples.inputs)
        self._action = self._tensor(samples.action, self._action_dtype)
        self._mask = None if samples.mask is None else self._tensor(samples.mask, torch.bool)
        columns = [samples.log_prob, samples.advantage, samples.returns]
        self._has_weight = samples.weight is not None
        columns += [column for column in (samples.weight, samples.importance) if column is not None]
        self._columns = self._tensor(np.stack(columns, axis=1), torch.float32)
        self._has_importance = samples.importance is not None

    def epoch(self, order: Array, settings: StepSettings, stop: Callable[[], bool]) -> EpochStats | None:
        self.adam.param_groups[0]["lr"] = settings.learning_rate
        rows = torch.from_numpy(order).to(self.device)
        stats: list[Tensor] = []
        for index in rows:
            if stop():
                return None
            stats.append(self._step(index, settings))
        return mean_stats(torch.stack(stats).double().cpu().numpy())

    def _step(self, index: Tensor, settings: StepSettings) -> Tensor:
        """One gradient step on the rows `index`; returns its statistics without leaving the device."""
        flat, images = self._samples_inputs
        inputs = (flat[index], tuple(image[index] for image in images))
        columns = self._columns[index]
        old_log_prob, advantage, returns = columns[:, 0], columns[:, 1], columns[:, 2]
        weight = columns[:, 3] if self._has_weight else None
        mask = None if self._mask is None else self._mask[index]

        def mean(x: Tensor) -> Tensor:
            return x.mean() if weight is None else (x * weight).sum() / weight.sum().clamp_min(1.0)

        if settings.normalize_advantage:
            center = mean(advantage)
            deviation = mean((advantage - center).square()).sqrt()
            advantage = (advantage - center) / deviation.clamp_min(ADVANTAGE_FLOOR)
        if self._has_importance:
            advantage = advantage * columns[:, -1]

        params, value = self.model(inputs)
        log_prob, entropy = self.distribution(params, self.model.log_std, self._action[index], mask)
        log_ratio = log_prob - old_log_prob
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1.0 - settings.clip_range, 1.0 + settings.clip_range)
        policy_loss = -mean(torch.minimum(ratio * advantage, clipped * advantage))
        value_loss = mean((value - returns).square())
        entropy_mean = mean(entropy)
        loss = policy_loss + settings.vf_coef * value_loss - settings.ent_coef * entropy_mean

        self.flat_grad.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.linalg.vector_norm(self.flat_grad)
        self.flat_grad.mul_((settings.max_grad_norm / (norm + 1e-6)).clamp_max(1.0))
        self.adam.step()

        with torch.no_grad():
            approx_kl = mean((ratio - 1.0) - log_ratio)
            error = (ratio - 1.0).abs()
            clip_fraction = mean((error > settings.clip_range).float())
            return torch.stack(
                [policy_loss, value_loss, entropy_mean, approx_kl, clip_fraction, error.max(), norm]
            ).detach()

    def parameters(self) -> dict[str, Array]:
        return model_arrays(self.model)

    def load_parameters(self, arrays: dict[str, Array]) -> None:
        load_arrays(self.model, arrays)

    def optimizer(self) -> dict[str, Array]:
        state = self.adam.state.get(self.flat)
        zeros = torch.zeros_like(self.flat)
        mean, square = (state["exp_avg"], state["exp_avg_sq"]) if state else (zeros, zeros)
        arrays = {f"mean.{name}": part for name, part in self._split(mean).items()}
        arrays |= {f"square.{name}": part for name, part in self._split(square).items()}
        return arrays | {"step": np.array(float(state["step"]) if state else 0.0, np.float32)}

    def load_optimizer(self, arrays: dict[str, Array]) -> None:
        moments = {
            field: np.concatenate([arrays[f"{prefix}.{name}"].ravel() for name in self._names])
            for field, prefix in (("exp_avg", "mean"), ("exp_avg_sq", "square"))
        }
        self.adam.state[self.flat] = {
            field: self._tensor(array, torch.float32) for field, array in moments.items()
        }
        self.adam.state[self.flat]["step"] = torch.tensor(float(arrays["step"]), dtype=torch.float32)

    def _split(self, flat: Tensor) -> dict[str, Array]:
        """A flat tensor in the order of the parameters as arrays by name."""
        parts = flat.detach().cpu().numpy()
        ends = np.cumsum([math.prod(shape) for shape in self._names.values()])
        pieces = np.split(parts, ends[:-1])
        return {
            name: piece.reshape(shape).copy()
            for (name, shape), piece in zip(self._names.items(), pieces, strict=True)
        }

    def _tensor(self, array: Array, dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device, dtype)

    def _inputs(self, inputs: Encoded) -> Inputs:
        images = tuple(
            torch.from_numpy(np.ascontiguousarray(image)).to(self.device) for image in inputs.images
        )
        return self._tensor(inputs.flat, torch.float32), images


def _flatten_parameters(model: nn.Module) -> tuple[nn.Parameter, Tensor]:
    """Make every parameter and gradient of the model a view of one flat tensor each."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    flat = nn.Parameter(torch.cat([p.detach().reshape(-1) for p in parameters]))
    flat.grad = torch.zeros_like(flat)
    start = 0
    for parameter in parameters:
        end = start + parameter.numel()
        parameter.data = flat.data[start:end].view_as(parameter)
        parameter.grad = flat.grad[start:end].view_as(parameter)
        start = end
    return flat, flat.grad
