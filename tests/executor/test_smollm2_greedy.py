"""The real small model in fp32: greedy tokens equal transformers' reading of the same weights."""

from collections.abc import Callable

import pytest
import tokenizers
from ridgeline_engine.executors.torch_executor.executor import TorchExecutor
from ridgeline_testing.executor_driver import ExecutorDriver
from ridgeline_testing.oracle import greedy_continuations
from ridgeline_testing.smollm2 import smollm2_folder

OUTPUT_TOKENS = 24
TEXTS = (
    "The capital of France is",
    "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) + fibonacci(n - 2)\n#",
)


@pytest.mark.timeout(300)
def test_greedy_tokens_equal_transformers_alone_chunked_and_batched(
    make_executor: Callable[..., TorchExecutor],
) -> None:
    folder = smollm2_folder()
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompts = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    expected = [list(ids) for ids in greedy_continuations(folder, prompts, output_tokens=OUTPUT_TOKENS)]
    driver = ExecutorDriver(make_executor(folder))
    slots = [driver.admit(slot, prompt) for slot, prompt in enumerate(prompts)]
    assert driver.generate(slots, OUTPUT_TOKENS, chunk_tokens=7) == expected
    for slot in slots:
        driver.release(slot)
    alone = driver.admit(5, prompts[1])
    assert driver.generate([alone], OUTPUT_TOKENS) == [expected[1]]
