"""How to read each chart."""

from __future__ import annotations

CAPTIONS = {
    "primary-contrasts": (
        "Differences of test pass@1 in points, left arm minus right arm, over the seeds that "
        "both have. Bars are 95 % intervals; hollow marks are single seeds."
    ),
    "competition-exchange": (
        "Test pass@1 of the four arms that differ only in whether the challenger is paid for "
        "beating its rival and in whether it sees the rival's summary. Bars are 95 % "
        "intervals over seeds and problems, small marks are seeds. The visible arms are "
        "reported with two passes and the hidden ones with one; the second and third panel "
        "give every cell the same passes."
    ),
    "ablations": (
        "Each arm's headline system minus that of the arm that it changes one thing of, test "
        "pass@1 in points. Bars are 95 % intervals, hollow marks are seeds. Descriptive: no "
        "correction for looking at so many."
    ),
    "controls": (
        "The same policies answer with their rival's own summary and with a control in its "
        "place: the summary of a draft of another problem, or a fixed text of the same "
        "length. Test pass@1 with the own summary minus with the control. Bars are 95 % "
        "intervals, hollow marks seeds."
    ),
    "orderings": (
        "Each pair of systems of which the paper publishes both, left the one that it finds "
        "ahead: their difference here. Right of zero is the paper's order. Bars are 95 % "
        "intervals, hollow marks seeds."
    ),
    "accuracy-tokens": (
        "Test pass@1 of each arm's headline system against the mean number of generated "
        "tokens of all its stages (filled marks). The hollow mark, joined by a dotted line, "
        "counts the last stage alone, as the paper does. Vertical bars are 95 % intervals."
    ),
    "votes-tokens": (
        "Each line is one system tried once, twice and so on: left the commonest answer of "
        "the tries, right the best of them, a bound that needs a perfect judge. At one place "
        "on the horizontal axis all systems have generated equally many tokens. A tie goes to "
        "the earliest answer and a try without an answer has no vote, so two votes gain only "
        "where one of the tries has none."
    ),
    "training-curves": (
        "Dev pass@1 over training of each arm's headline system, in the direction that dev "
        "chose at the end. Lines are means of the seeds, shaded areas reach from the lowest "
        "seed to the highest. Which arm is ahead is read from the test split, not from these."
    ),
    "conversions-regressions": (
        "What the second pass changes: wrong drafts that it answers right (up) and right "
        "drafts that it answers wrong (down), as shares of all attempts. Bars are 95 % "
        "intervals over seeds and problems. An asterisk marks the direction "
        "that is reported under at least one seed: dev chose it, or the arm has no other."
    ),
    "blind-spots": (
        "Filled marks, full lines: adapter a against adapter b. Hollow marks, dotted: two "
        "samples of one adapter, mean of both adapters. Jaccard is the share of erring pairs "
        "in which both err, φ the correlation of the errors. KL is the mean of both "
        "directions in nats a token on drafts of both; distance is the Frobenius norm of the "
        "difference of the weight changes. Lines are means of the seeds; shaded in "
        "the lower panels: from the lowest seed to the highest. The "
        "full lines of the two upper panels count pairs that were drawn with the same random "
        "numbers too, which makes two policies look more alike than they are, most of all "
        "early; the test split below does without those pairs."
    ),
    "error-overlap": (
        "Jaccard index of the errors of a and b minus that of two samples of one adapter "
        "(mean of both), times 100. Left of zero the adapters err on different problems: a "
        "blind spot of one is covered by the other. Bars are 95 % intervals over seeds and "
        "problems. Attempts drawn with the same random numbers are never compared."
    ),
    "lengths": (
        "Generated tokens of the last stage on test, by verdict, all seeds together: mark "
        "median, thick bar the middle half, thin bar from the tenth to the ninetieth "
        "percentile."
    ),
}
"""By the chart's name."""
