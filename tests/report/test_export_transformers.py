"""The file for transformers, in the hands of transformers itself."""

from pathlib import Path

import numpy as np
import pytest
from law_reference import chain_law

from jaxsppl.report.export import export

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize(
    ("settings", "chain"),
    [
        ({"temperature": 0.7, "min_p": 0.1}, ("min_p", "temperature")),
        ({"temperature": 1.4, "top_k": 12.0}, ("top_k", "temperature")),
        ({"temperature": 1.3, "top_p": 0.8}, ("temperature", "top_p")),
        ({"temperature": 0.0, "top_p": 0.8}, ("top_p", "temperature")),
        ({}, ()),  # nothing: the default top_k of 50 must be off
    ],
)
def test_a_model_samples_the_law(
    tmp_path: Path, settings: dict[str, float], chain: tuple[str, ...]
) -> None:
    (tmp_path / "generation_config.json").write_text(
        export(settings, chain, "generation_config").text
    )
    given = transformers.GenerationConfig.from_pretrained(tmp_path)
    torch.manual_seed(0)
    small = transformers.LlamaConfig(
        vocab_size=80, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, initializer_range=1.0,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(small).eval()
    made = model.generate(
        torch.tensor([[3, 14, 15]]), generation_config=given, max_new_tokens=1, pad_token_id=0,
        output_scores=True, output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    raw, left = (np.asarray(made[name][0][0], np.float64) for name in ("logits", "scores"))
    order = np.argsort(-raw)
    wanted = chain_law(raw[order], [(stage, settings[stage]) for stage in chain])
    if given.do_sample:
        share = np.exp(left - left.max())
        np.testing.assert_allclose((share / share.sum())[order], wanted, atol=1e-6)
    else:
        assert wanted[0] == 1.0
        assert made.sequences[0, -1] == order[0]
