"""The combinations of a sweep: values of settings, and names that say what differs."""

import pytest

from streamcache.cli.jobs.combinations import combination, combine, parse_axes
from streamcache.cli.parser import UsageError


def names(*texts: str, **base) -> list[str]:
    return [one.name for one in combine("my_lora", parse_axes(texts), base)]


def test_i5_every_combination_is_named_after_what_differs() -> None:
    expected = ["my_lora-rank8-lr1e-4", "my_lora-rank8-lr5e-5", "my_lora-rank16-lr1e-4", "my_lora-rank16-lr5e-5"]
    assert names("rank=8,16", "learning_rate=1e-4,5e-5") == expected
    # The order and the old names of flags change nothing: a sweep that is started again finds its runs.
    assert sorted(names("lr=0.00005, 1e-4", "network-dim=16,8")) == sorted(expected)


@pytest.mark.parametrize(
    ("text", "suffixes"),
    [
        ("learning_rate=0.5,1,3.17e-4,1e-8,16", ["lr0.5", "lr1", "lr3.17e-4", "lr1e-8", "lr16"]),
        ("dora=on,off", ["dora_on", "dora_off"]),
        ("lr_schedule=constant,cosine", ["lr_schedule_constant", "lr_schedule_cosine"]),
        ("noise_offset=0,0.05", ["noise_offset0", "noise_offset0.05"]),
    ],
)
def test_values_are_short_and_have_all_digits(text: str, suffixes: list[str]) -> None:
    assert names(text) == [f"my_lora-{suffix}" for suffix in suffixes]


def test_values_with_commas_are_separated_by_semicolons_and_have_names_that_every_system_takes() -> None:
    found = names("targets=attention,!*.0.*;attention+mlp;a/b*")
    assert found[1] == "my_lora-targets_attention+mlp"
    assert found[0].startswith("my_lora-targets_attention_.0-") and "/" not in "".join(found)
    assert len(set(found)) == 3 == len(set(names("set_weights=main=2,other=1;main=3")) | {"one more"})


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["rank"], "--set rank: expected NAME=VALUE,VALUE"),
        (["rnk=8"], 'unknown setting "rnk"; did you mean "rank"?'),
        (["rank="], "--set rank=: has no values"),
        (["rank=8,8"], "a value is given twice"),
        (["learning_rate=1e-4,0.0001"], "a value is given twice"),
        (["rank=8", "rank=16"], "rank is given twice; give all its values in one --set"),
        (["rank=8,0"], "rank = 0: expected a whole number of at least 1"),
        (["rank=8,x"], 'rank = "x": expected a whole number'),
        (["name=a,b"], "every run of a sweep has its own name"),
        (["rank=8..16"], "--set rank: a range has no end of values; add --search N, or list them"),
        (["learning_rate=1e-3..1e-5"], "expected a range from a lower to a higher number"),
        (["noise_offset=0..1:log"], "a logarithmic range begins above 0"),
        (["adapter=lora,oft", "dora=true"], 'my_lora-adapter_oft-dora_on: dora = True: not possible with adapter'),
        (["name=" + "x" * 200], "every run of a sweep has its own name"),
    ],
)  # fmt: skip
def test_i5_an_invalid_combination_is_refused_with_its_name(texts: list[str], words: str) -> None:
    with pytest.raises(UsageError) as refused:
        names(*texts)
    assert words in str(refused.value)


def test_the_settings_that_all_have_count_too() -> None:
    with pytest.raises(UsageError, match="t_min = 0.5: not below t_max = 0.4"):
        names("t_min=0.1,0.5", t_max=0.4)


def test_a_range_of_a_search_keeps_whole_numbers_and_shortens_others() -> None:
    rank, rate = parse_axes(["learning_rate=1e-5..1e-3:log", "rank=4..64"])
    assert (rank.range.low, rank.range.high, rank.range.log) == (4, 64, False) and isinstance(rank.range.low, int)
    assert rate.range.log and rate.round(0.000123456) == 0.000123 and rank.round(17) == 17
    assert combination("x", {"learning_rate": rate.round(0.000123456)}).name == "x-lr1.23e-4"
