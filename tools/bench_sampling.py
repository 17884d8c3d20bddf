"""Print what drawing one token costs, per parameter set: median and worst of many, one thread."""

from __future__ import annotations

import statistics
import sys
import time

import torch

from meshnet.core.vocabulary import SamplingParams
from meshnet.engine.history import History
from meshnet.engine.sampling import Sampler

CASES = {
    "greedy": SamplingParams(),
    "greedy, 5 logprobs": SamplingParams(logprobs=5),
    "temperature": SamplingParams(temperature=0.8),
    "temperature, top_p 0.9": SamplingParams(temperature=0.8, top_p=0.9),
    "temperature, top_k 50": SamplingParams(temperature=0.8, top_k=50),
    "temperature, top_k 50, top_p 0.9": SamplingParams(temperature=0.8, top_k=50, top_p=0.9),
    "temperature, min_p 0.05": SamplingParams(temperature=0.8, min_p=0.05),
    "all penalties, top_k, top_p": SamplingParams(
        temperature=0.8,
        top_k=50,
        top_p=0.95,
        repetition_penalty=1.1,
        presence_penalty=0.5,
        frequency_penalty=0.5,
        prompt_length=1000,
        logit_bias=((5, 3.0), (7, -100.0)),
    ),
    "flat logits, top_p 0.99": SamplingParams(temperature=2.0, top_p=0.99),
}


def main(vocab_size: int = 151_936, rounds: int = 200) -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    peaked = torch.randn(vocab_size, generator=generator) * 2.5
    peaked[torch.randint(vocab_size, (40,), generator=generator)] += 12.0
    flat = torch.randn(vocab_size, generator=generator)
    sampler = Sampler()
    print(f"vocabulary {vocab_size}, one thread, {rounds} rounds, milliseconds")
    for name, sampling in CASES.items():
        logits = flat if name.startswith("flat") else peaked
        history = History([i * 37 % vocab_size for i in range(2000)])
        times = []
        for position in range(rounds):
            started = time.perf_counter()
            token = sampler.draw(logits, history, sampling, 2000 + position)
            times.append((time.perf_counter() - started) * 1e3)
            history.extend([token.token_id])
        times.sort()
        print(f"{name:34} median {statistics.median(times):6.2f}  p99 {times[-rounds // 100]:6.2f}")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
