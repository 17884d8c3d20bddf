"""lm-eval over `/v1/completions` beside lm-eval over transformers, on the same weights."""

import os
from pathlib import Path

import lm_eval
import pytest
from lm_eval.tasks import TaskManager

KEY, URL = os.environ["MESHNET_SUITE_KEY"], os.environ["MESHNET_SUITE_URL"]
MODEL = os.environ["MESHNET_SUITE_MODEL"]
HERE = Path(__file__).parent / "lm_eval"
TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    text = (HERE / "meshnet_lines.yaml").read_text().replace("LINES", str(HERE / "lines.jsonl"))
    (folder / "meshnet_lines.yaml").write_text(text)
    os.environ["OPENAI_API_KEY"] = KEY
    return TaskManager(include_path=str(folder))


def scored(tasks, model, arguments):
    told = lm_eval.simple_evaluate(
        model=model, model_args=arguments, tasks=["meshnet_lines"], task_manager=tasks,
        batch_size=1, bootstrap_iters=0,
    )  # fmt: skip
    samples = sorted(told["samples"]["meshnet_lines"], key=lambda sample: sample["doc_id"])
    return [
        (float(answer[0]), str(answer[1]))
        for sample in samples
        for answer in sample["filtered_resps"]
    ]


def test_log_likelihoods_as_transformers_has_them(tasks):
    ours = scored(
        tasks,
        "local-completions",
        f"base_url={URL}/v1/completions,model=default,tokenizer={MODEL},"
        "tokenized_requests=True,num_concurrent=2,max_retries=1",
    )
    theirs = scored(tasks, "hf", f"pretrained={MODEL},dtype=float32,device=cpu")
    assert len(ours) == 24
    assert [greedy for _, greedy in ours] == [greedy for _, greedy in theirs]
    for (our, _), (their, _) in zip(ours, theirs, strict=True):
        assert our == pytest.approx(their, abs=TOLERANCE)
