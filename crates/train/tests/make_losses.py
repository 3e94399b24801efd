"""Losses, advantages and their gradients as PyTorch has them, in float64: the oracle of tests/algorithms.rs.

    python make_losses.py > losses.json      the golden numbers
    python make_losses.py --inputs < FILE    the same for numbers of the test's own, printed

Plain formulas and autograd, nothing of ours.
"""

import json
import sys

import torch

torch.set_default_dtype(torch.float64)
VOCABULARY = 7
LENGTHS = [5, 3, 9, 1]
MOST_TOKENS = 16


def random_inputs(seed: int) -> dict:
    generator = torch.Generator().manual_seed(seed)
    tokens = sum(LENGTHS)

    def normal(*shape: int) -> list:
        # Numbers that an f32 holds exactly, so that both sides start from the same.
        return torch.randn(shape, generator=generator).float().double().tolist()

    old = [-abs(x) - 0.1 for x in normal(tokens)]
    old = torch.tensor(old).float().double()
    mask = torch.rand(tokens, generator=generator) < 0.7
    mask[0] = True
    near = torch.tensor(normal(tokens)) * 0.3
    return dict(
        lengths=LENGTHS,
        mask=mask.tolist(),
        logits=normal(tokens, VOCABULARY),
        targets=torch.randint(0, VOCABULARY, (tokens,), generator=generator).tolist(),
        old=old.tolist(),
        logprobs=(old + near).float().double().tolist(),
        sampler=(old - 0.5 * near).float().double().tolist(),
        advantages=normal(tokens),
        values=normal(tokens),
        old_values=normal(tokens),
        rewards=normal(tokens),
        group=[[reward, length] for reward, length in zip(normal(6), [30, 10, 25, 70, 12, 40])],
    )


def weights(mask: torch.Tensor, lengths: list[int], aggregation: str) -> torch.Tensor:
    mask = mask.double()
    if aggregation == "token":
        return mask / mask.sum()
    said = sum(1 for part in mask.split(lengths) if part.sum() > 0)
    if aggregation == "constant":
        return mask / MOST_TOKENS / said
    parts = [part / part.sum() if part.sum() > 0 else part for part in mask.split(lengths)]
    return torch.cat(parts) / said


def gae(rewards, values, mask, gamma: float, lam: float) -> torch.Tensor:
    """The textbook double sum over the tokens that were said."""
    said = mask.nonzero().flatten().tolist()
    result = torch.zeros(len(mask))
    for place, token in enumerate(said):
        total = 0.0
        for ahead, later in enumerate(said[place:]):
            following = said[place + ahead + 1 : place + ahead + 2]
            next_value = values[following[0]] if following else 0.0
            delta = rewards[later] + gamma * next_value - values[later]
            total += (gamma * lam) ** ahead * delta
        result[token] = total
    return result


def with_gradient(loss: torch.Tensor, inputs: torch.Tensor) -> dict:
    (gradient,) = torch.autograd.grad(loss, inputs, retain_graph=True)
    return dict(value=loss.item(), gradient=gradient.flatten().tolist())


def outputs(given: dict) -> dict:
    mask = torch.tensor(given["mask"])
    lengths = given["lengths"]
    tensor = {k: torch.tensor(given[k], requires_grad=True) for k in ["logits", "logprobs", "values"]}
    const = {k: torch.tensor(given[k]) for k in ["old", "sampler", "advantages", "old_values", "rewards"]}
    logits, logprobs, values = tensor["logits"], tensor["logprobs"], tensor["values"]
    targets = torch.tensor(given["targets"])
    found: dict = {}
    for name in ["trajectory", "token", "constant"]:
        w = weights(mask, lengths, name)
        log_softmax = torch.log_softmax(logits, -1)
        losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
        ratio = torch.exp(logprobs - const["old"])
        advantage = const["advantages"]
        clipped = torch.min(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
        # As in verl: where the advantage is negative, the loss is at most -c times it.
        dual = torch.where(advantage < 0, torch.max(clipped, 1.2 * advantage), clipped)
        moved = zip((logprobs - const["old"]).split(lengths), mask.double().split(lengths))
        means = [(part * said).sum() / said.sum().clamp(min=1) for part, said in moved]
        of_sequence = torch.cat([mean.exp().expand(length) for mean, length in zip(means, lengths)])
        gspo = torch.min(of_sequence * advantage, of_sequence.clamp(0.8, 1.28) * advantage)
        importance = torch.exp(const["old"] - const["sampler"]).clamp(max=2.0)
        behind = const["old"] - logprobs
        v_clipped = const["old_values"] + (values - const["old_values"]).clamp(-0.2, 0.2)
        returns = const["rewards"]
        value_losses = torch.max((values - returns) ** 2, (v_clipped - returns) ** 2) / 2
        found[name] = dict(
            weights=w.tolist(),
            cross_entropy=with_gradient((w * losses).sum(), logits),
            entropy=with_gradient((w * -(log_softmax.exp() * log_softmax).sum(-1)).sum(), logits),
            plain=with_gradient((w * -(ratio * advantage)).sum(), logprobs),
            clipped=with_gradient((w * -clipped).sum(), logprobs),
            dual=with_gradient((w * -dual).sum(), logprobs),
            importance=with_gradient((w * -clipped * importance).sum(), logprobs),
            gspo=with_gradient((w * -gspo).sum(), logprobs),
            k1=with_gradient((w * -behind).sum(), logprobs),
            k3=with_gradient((w * (behind.exp() - 1 - behind)).sum(), logprobs),
            value=with_gradient((w * (values - returns) ** 2 / 2).sum(), values),
            value_clipped=with_gradient((w * value_losses).sum(), values),
        )
    parts = zip(const["rewards"].split(lengths), values.detach().split(lengths), mask.split(lengths))
    advantages = {"0.95": [], "1.0": []}
    for reward, value, said in parts:
        for lam in advantages:
            advantages[lam] += gae(reward, value, said, 0.99, float(lam)).tolist()
    found["advantages"] = advantages
    said = torch.tensor(advantages["0.95"])[mask]
    w = weights(mask, lengths, "trajectory")[mask]
    mean = (w * said).sum()
    # Unbiased for weights that say how much each counts.
    variance = (w * (said - mean) ** 2).sum() / (1 - (w**2).sum())
    found["whitened"] = dict(
        trajectory=((said - mean) * torch.rsqrt(variance + 1e-8)).tolist(),
        token=((said - said.mean()) * torch.rsqrt(said.var() + 1e-8)).tolist(),
    )
    returns = (torch.tensor(advantages["1.0"]) + values.detach())[mask]
    errors = returns - values.detach()[mask]
    found["explained_variance"] = (1 - errors.var(unbiased=False) / returns.var(unbiased=False)).item()
    ratios = torch.exp(const["old"] - const["sampler"])[mask]
    found["mismatch"] = dict(
        mean_difference=(const["old"] - const["sampler"])[mask].abs().mean().item(),
        largest_deviation=(ratios - 1).abs().max().item(),
        truncated=(ratios > 2).double().mean().item(),
    )
    rewards, sizes = torch.tensor(given["group"]).T
    passed = rewards > 0
    z = (sizes - sizes[passed].mean()) / (sizes[passed].std(unbiased=False) + 1e-6)
    short = torch.where(passed, rewards * torch.exp(-0.05 * z), rewards)
    rate = passed.double().mean()
    weight = lambda rho: 0.4 + 1.1 / (1 + torch.exp(10 * (rho - 0.75)))  # noqa: E731
    centred = rewards - rewards.mean()
    others = [torch.cat([rewards[:place], rewards[place + 1 :]]).mean() for place in range(len(rewards))]
    found["group"] = dict(
        absolute=centred.tolist(),
        leave_one_out=(rewards - torch.stack(others)).tolist(),
        deviation=(centred / (rewards.std(unbiased=False) + 1e-6)).tolist(),
        length=(short - short.mean()).tolist(),
        difficulty=torch.where(centred > 0, centred * weight(rate), centred * weight(1 - rate)).tolist(),
    )
    return found


if __name__ == "__main__":
    if "--inputs" in sys.argv:
        print(json.dumps(outputs(json.load(sys.stdin))))
    else:
        given = random_inputs(7)
        print(json.dumps(dict(inputs=given, outputs=outputs(given))))
