"""Where iterations begin: the finder, told what a loop does."""

import pytest

from girih._steps import Authority, Steps


class Loop:
    """A finder, and the log of what went by with a bar for each `step` mark."""

    def __init__(self) -> None:
        self.log = ""
        self.steps = Steps(self._mark)

    def _mark(self, kind: str, name: str) -> None:
        if kind == "step":
            self.log += "|"

    def play(self, text: str) -> str:
        """`b` is a backward pass; a letter in upper case is an optimizer that steps."""
        for letter in text.replace(" ", ""):
            self.log += letter
            if letter == "b":
                self.steps.backward()
            else:
                self.steps.optimizer_begins(ord(letter))
                self.steps.optimizer_ends(ord(letter))
        return self.log


def period(log: str) -> set[str]:
    """What is between the marks, without the part before the first and after the last."""
    return set(log.split("|")[1:-1])


def test_one_optimizer_ends_every_iteration_from_the_first_on():
    assert Loop().play("bA bA bA") == "bA|bA|bA|"


def test_accumulated_gradients_are_one_iteration():
    assert Loop().play("bbbA bbbA") == "bbbA|bbbA|"


def test_of_optimizers_that_step_together_the_last_ends_the_iteration():
    log = Loop().play("bABC" * 4)
    assert log.endswith("|bABC|bABC|bABC|")


def test_of_optimizers_with_passes_between_one_ends_the_iteration():
    log = Loop().play("bDbG" * 6)
    assert period(log) == {"bGbD"}


def test_the_rarer_of_two_optimizers_ends_the_iteration():
    log = Loop().play("bDbDbDbDbDbG" * 8)
    assert period("|".join(log.split("|")[12:])) == {"bDbDbDbDbDbG"}


def test_an_optimizer_for_each_parameter_that_steps_in_the_backward_pass():
    parameters = "".join(chr(0x100 + index) for index in range(300))
    log = Loop().play(f"b{parameters}" * 4)
    assert log.endswith(f"|b{parameters}|b{parameters}|b{parameters}|")


def test_the_anchor_is_given_up_when_it_no_longer_steps():
    log = Loop().play("bAbB" * 3 + "bB" * 200)
    assert log.endswith("bB|bB|bB|")


def test_an_optimizer_that_is_gone_is_no_anchor():
    loop = Loop()
    loop.play("bAbA")
    loop.steps.optimizer_gone(ord("A"))
    assert loop.play("bBbB").endswith("bB|bB|")


def test_a_closure_begins_no_phase_of_the_optimizer():
    kinds: list[str] = []
    steps = Steps(lambda kind, name: kinds.append(kind))
    steps.optimizer_begins(1, has_closure=True)
    steps.backward()
    steps.optimizer_ends(1)
    assert kinds == ["backward", "step"]


def test_an_integration_silences_the_optimizers():
    loop = Loop()
    for _ in range(3):
        loop.steps.begin(Authority.INTEGRATION)
        loop.play("bAbA")
    assert loop.log == "|bAbA|bAbA|bAbA"


def test_the_user_silences_everyone():
    loop = Loop()
    loop.steps.begin(Authority.USER)
    loop.play("bA")
    loop.steps.begin(Authority.INTEGRATION)
    loop.play("bA")
    loop.steps.end(Authority.USER)
    loop.steps.begin(Authority.USER)
    assert loop.log == "|bAbA|"


def test_two_boundaries_with_nothing_between_are_one():
    loop = Loop()
    loop.steps.begin(Authority.INTEGRATION)
    loop.steps.begin(Authority.INTEGRATION)
    assert loop.log == "|"


def test_microbatches_are_numbered_within_their_iteration(marks):
    steps = Steps(marks)
    for _ in range(2):
        for _ in range(2):
            steps.forward()
            steps.forward()  # another hook sees the same pass
            steps.backward()
        steps.begin(Authority.INTEGRATION)
    passes = [mark for mark in marks if mark[0] != "step"]
    once = [("forward", "0"), ("backward", "0"), ("forward", "1"), ("backward", "1")]
    assert passes == once * 2


def test_evaluation_is_followed_by_a_new_iteration(marks):
    steps = Steps(marks)
    steps.backward()
    steps.optimizer_begins(1)
    steps.optimizer_ends(1)
    steps.evaluation_begins()
    steps.evaluation_begins()
    steps.evaluation_ends()
    steps.evaluation_ends()
    assert marks.kinds() == "backward optimizer step eval step"


@pytest.mark.parametrize("authority", [Authority.INTEGRATION, Authority.USER])
def test_after_an_evaluation_only_the_highest_authority_says_what_begins(marks, authority):
    steps = Steps(marks)
    steps.begin(authority)
    for _ in range(2):
        steps.evaluation_begins()
        steps.evaluation_ends()
        steps.backward()
    assert marks.kinds() == "step eval backward eval backward", "each evaluation is marked"
