"""What continuous batching is worth over static batching, for a given spread of output lengths."""

from collections.abc import Sequence

from ridgeline_roofline.decisions.decision import Decision


def continuous_gain(output_tokens: Sequence[int], *, batch: int) -> Decision[float]:
    """Throughput of continuous over static batching at equal batch, from observed output lengths (>= 1 each).

    A static batch ends with its longest member, so a slot is busy for mean / E[longest of B] of the time; a
    continuous one refills the slot at once. Both run steps of the same size, hence the gain is
    E[longest of B] / mean. By order statistics, E[longest] = sum over n of P(one of B is longer than n), with
    the lengths drawn independently from those given. Raises ValueError without lengths or for batch < 1.
    """
    if not output_tokens or batch < 1:
        raise ValueError(f"{len(output_tokens)} lengths and a batch of {batch}: give at least 1 of each")
    ordered = sorted(output_tokens)
    count, mean = len(ordered), sum(ordered) / len(ordered)
    longest = sum(
        length * (((rank + 1) / count) ** batch - (rank / count) ** batch)
        for rank, length in enumerate(ordered)
    )
    value = longest / mean
    return Decision(
        value,
        f"gain = {value:.2f}: of {batch} outputs the longest has {longest:.0f} tokens on average, the mean is "
        f"{mean:.0f} over {count} outputs seen",
    )
