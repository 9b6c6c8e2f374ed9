"""Which pools are accepted, and what a refusal says."""

from dataclasses import replace
from typing import Any

import pytest
from ridgeline_contracts.resources.model import ModelStatus
from ridgeline_contracts.resources.worker_pool import PoolRole
from ridgeline_operator.admission import Fits, Peer, Refused
from ridgeline_roofline.catalogue.models import model_config
from ridgeline_testing.pools import LLAMA, PASSED, SMALL, model_spec, pool_spec, verdict

BF16 = [{"generation": "hopper", "weights": "bf16", "gate": PASSED}]


def _one_gpu(**engine: Any) -> Any:
    return pool_spec(layout={"tp": 1}, engine=engine)


def test_a_pool_that_fits_has_a_ledger_a_capacity_and_their_working() -> None:
    fits = verdict(pool_spec(), model_spec())
    assert isinstance(fits, Fits)
    assert 69e9 < fits.weights_bytes < 75e9, "70 G parameters, a byte each, tables wider"
    assert [line.split()[0] for line in fits.ledger.splitlines()][:2] == ["weights", "context"]
    assert fits.capacity_per_s is not None
    assert fits.capacity_per_s > 0
    assert {each.name for each in fits.derivations} == {"capacity", "kvCopies", "sequences"}


def test_a_b200_pool_has_more_capacity_than_an_h100_pool_of_the_same_layout() -> None:
    old, new = (verdict(pool_spec(gpuClass=name), model_spec()) for name in ("h100", "b200"))
    assert isinstance(old, Fits)
    assert isinstance(new, Fits)
    assert old.capacity_per_s is not None
    assert new.capacity_per_s is not None
    assert new.capacity_per_s > 1.5 * old.capacity_per_s


@pytest.mark.parametrize(
    ("pool", "formats", "change"),
    [
        pytest.param(_one_gpu(), BF16, "layout.tp=4", id="many-gpus-short"),
        pytest.param(
            pool_spec(layout={"tp": 2, "gpusPerNode": 2}, engine={"maxContextTokens": 32768}),
            BF16,
            "kv: fp8 in the Model's formats",
            id="a-little-kv-short",
        ),
        pytest.param(
            pool_spec(layout={"tp": 2, "gpusPerNode": 2}, engine={"maxContextTokens": 65536}),
            BF16,
            "weights: fp8 in the Model's formats",
            id="narrower-weights",
        ),
    ],
)
def test_a_layout_that_cannot_fit_is_refused_with_ledger_and_smallest_change(
    pool: Any, formats: Any, change: str
) -> None:
    refused = verdict(pool, model_spec(formats=formats))
    assert isinstance(refused, Refused)
    assert refused.reason == "MemoryDoesNotFit"
    assert f"Smallest change that fits: {change}" in refused.message
    assert "\nweights " in refused.message
    assert " GB  measured: 70,553,706,496 parameters" in refused.message


@pytest.mark.parametrize(
    ("pool", "formats", "mended_pool", "mended_formats"),
    [
        pytest.param(_one_gpu(), BF16, pool_spec(layout={"tp": 4, "gpusPerNode": 4}), BF16, id="tp"),
        pytest.param(
            pool_spec(layout={"tp": 2, "gpusPerNode": 2}, engine={"maxContextTokens": 65536}),
            BF16,
            pool_spec(layout={"tp": 2, "gpusPerNode": 2}, engine={"maxContextTokens": 65536}),
            [{"generation": "hopper", "weights": "fp8", "gate": PASSED}],
            id="format",
        ),
    ],
)
def test_the_named_change_fits(pool: Any, formats: Any, mended_pool: Any, mended_formats: Any) -> None:
    assert isinstance(verdict(pool, model_spec(formats=formats)), Refused)
    assert isinstance(verdict(mended_pool, model_spec(formats=mended_formats)), Fits)


def test_tensor_parallelism_past_the_kv_heads_is_refused_unless_it_is_asked_for() -> None:
    pool = pool_spec(layout={"tp": 16, "nodes": 2, "gpusPerNode": 8})
    refused = verdict(pool, model_spec())
    assert isinstance(refused, Refused)
    assert refused.reason == "CopiesKvHeads"
    assert "held 2 times" in refused.message
    assert "layout.tp=8" in refused.message
    accepted = verdict(replace(pool, layout=replace(pool.layout, allow_kv_copies=True)), model_spec())
    assert isinstance(accepted, Fits)
    assert {each.name: each.value for each in accepted.derivations}["kvCopies"] == "2"


@pytest.mark.parametrize(
    ("pool", "model", "reason", "told"),
    [
        pytest.param(
            pool_spec(gpuClass="cpu", layout={"gpusPerNode": 0}),
            model_spec(),
            "NoFormatForGeneration",
            "lists formats for hopper blackwell",
            id="no-format-of-the-generation",
        ),
        pytest.param(
            pool_spec(),
            model_spec(
                formats=[
                    {
                        "generation": "hopper",
                        "weights": "fp8",
                        "gate": {"passed": False, "evidence": "2 % worse"},
                    }
                ]
            ),
            "GateNotPassed",
            "(2 % worse)",
            id="gate-not-passed",
        ),
        pytest.param(
            pool_spec(),
            model_spec(source={"hf": {"repository": "a/b"}}),
            "SourceNotServed",
            "give source.pvc",
            id="source",
        ),
        pytest.param(
            pool_spec(),
            model_spec({key: value for key, value in LLAMA.items() if key != "catalogueId"}),
            "ShapeUnknown",
            "set its catalogueId",
            id="shape",
        ),
        pytest.param(
            pool_spec(),
            model_spec(catalogueId="llama-9"),
            "LayoutImpossible",
            "give one of llama-3.1-8b",
            id="unknown-catalogue-id",
        ),
        pytest.param(
            pool_spec(layout={"tp": 7, "gpusPerNode": 8}),
            model_spec(),
            "LayoutImpossible",
            "tp=7 does not divide the 64 query heads",
            id="tp-does-not-divide",
        ),
        pytest.param(
            pool_spec(
                gpuClass="cpu",
                layout={"gpusPerNode": 0},
                resources={"memory": "1Gi"},
                modelRef={"name": "small"},
            ),
            model_spec(SMALL),
            "MemoryDoesNotFit",
            "Smallest change that fits: resources.memory=2Gi",
            id="cpu-memory",
        ),
    ],
)
def test_a_pool_that_cannot_work_is_refused_with_its_reason(
    pool: Any, model: Any, reason: str, told: str
) -> None:
    refused = verdict(pool, model)
    assert isinstance(refused, Refused)
    assert (refused.reason, told in refused.message) == (reason, True), refused.message


def test_prefill_and_decode_pools_must_agree_on_weights() -> None:
    pool = pool_spec(role="decode")
    refused = verdict(pool, model_spec(), peers=[Peer("pre", PoolRole.PREFILL, "bf16")])
    assert isinstance(refused, Refused)
    assert refused.reason == "FormatsDisagree"
    assert isinstance(verdict(pool, model_spec(), peers=[Peer("pre", PoolRole.PREFILL, "fp8")]), Fits)
    assert isinstance(verdict(pool, model_spec(), peers=[Peer("other", PoolRole.DECODE, "bf16")]), Fits)


def test_the_weights_own_shape_goes_before_the_catalogues() -> None:
    status = ModelStatus(config=model_config("smollm2-135m"))
    fits = verdict(pool_spec(layout={"tp": 1}), model_spec(), status=status)
    assert isinstance(fits, Fits)
    assert fits.weights_bytes < 1e9
