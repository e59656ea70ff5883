"""Which calls are cut short, and for which merchants. 40 slots, 2 of them for silent ones."""

import pytest

from pos_gateway.admission.admission import AdmissionVerdict
from pos_gateway.admission.limits import Terms
from pos_gateway.admission.outliers import GRACE
from pos_gateway.domain.outcome import CallResult
from tests.admission.stage import START, Stage

NAMES = [f"h{n}" for n in range(40)]


def a_stage(known: int = 40, **options: object) -> Stage:
    """This many merchants usually answer after 0.1 s, and so do "healthy" and "other"."""
    stage = Stage(limit=1, slots=40, max_blocked=1000, **options)  # type: ignore[arg-type]
    stage.know(*NAMES[:known][:20])
    if known > 20:
        stage.know(*NAMES[20:known])
    stage.know("healthy", "other", "third")
    return stage


def hang(stage: Stage, number: int) -> None:
    """Calls to this many take longer than usual, and "healthy" has answered meanwhile."""
    for name in NAMES[:number]:
        assert stage.offer(name) == START
    stage.pass_time(0.2)
    stage.answer("healthy", after=GRACE)
    stage.pass_time(GRACE)


def test_calls_that_hang_are_cut_short_for_light_orders_that_lack_a_slot() -> None:
    stage = a_stage()
    hang(stage, 39)
    assert stage.offer("healthy") == START
    assert stage.cut_short() == []
    assert stage.offer("other") is AdmissionVerdict.WAIT
    assert stage.cut_short() == ["h0"]
    assert stage.cut_short() == []  # the call has not returned yet
    assert stage.offer("third") is AdmissionVerdict.WAIT
    assert stage.cut_short() == ["h1"]
    stage.reply("h0", contact=CallResult.TIMED_OUT)
    assert stage.starts() == ["o"]
    assert stage.standing("h0").silent


def test_calls_within_the_silent_merchants_share_are_not_cut_short() -> None:
    stage = a_stage()
    hang(stage, 2)
    for name in NAMES[2:]:
        assert stage.offer(name) == START
    assert stage.offer("healthy") is AdmissionVerdict.WAIT
    assert stage.cut_short() == []


def test_nothing_is_cut_short_for_merchants_that_are_silent_themselves() -> None:
    stage = a_stage()
    stage.terms = Terms(2)
    for name in NAMES:
        stage.admission.set_terms(name, Terms(2))
    hang(stage, 39)
    stage.pass_time(5.0)
    stage.answer("healthy", after=0.1)
    for name in NAMES[:39]:
        assert stage.offer(name) is AdmissionVerdict.WAIT
    stage.pass_time(1.0)
    assert stage.cut_short() == []


@pytest.mark.parametrize(("hanging", "chosen"), [(10, []), (11, ["h0"])])
def test_for_a_heavy_order_calls_are_cut_short_while_silent_merchants_hold_over_a_quarter(
    hanging: int, chosen: list[str]
) -> None:
    stage = a_stage_with_a_heavy_order(hanging)
    assert stage.cut_short() == chosen
    assert stage.cut_short() == []


def test_no_call_is_cut_short_for_a_heavy_order_that_lacks_cpu() -> None:
    stage = a_stage_with_a_heavy_order(11)
    stage.admission.turned(1.0, 0.0)
    stage.admission.cpu.started()  # another one that yields: the next has to wait for its turn
    assert stage.cut_short() == []
    stage.admission.turned(0.0, 1.0)
    assert stage.cut_short() == ["h0"]


def a_stage_with_a_heavy_order(hanging: int) -> Stage:
    """It waits for a slot, and this many calls hang."""
    stage = a_stage()
    stage.know("heavy", *(f"other{n}" for n in range(27)), seconds=100.0)
    hang(stage, hanging)
    for n in range(38 - hanging):
        stage.offer(f"other{n}")
    stage.starts()
    assert stage.offer("heavy") is AdmissionVerdict.WAIT
    assert stage.cut_short() == []  # no merchant is silent yet
    stage.pass_time(0.5)
    stage.pass_time(GRACE)
    assert stage.admission.slots["silent"] == hanging
    return stage


def test_where_others_have_not_answered_calls_are_cut_short_once_their_merchants_are_silent() -> (
    None
):
    """The network is down; or they hold all slots, so that no other merchant can answer."""
    stage = a_stage()
    for name in NAMES:
        assert stage.offer(name) == START
    stage.offer("healthy")
    stage.pass_time(0.2)
    stage.pass_time(GRACE)
    assert stage.cut_short() == []
    stage.pass_time(0.3)
    assert stage.cut_short() == ["h0"]


def test_a_call_of_a_merchant_that_has_answered_since_is_not_cut_short() -> None:
    stage = a_stage()
    stage.admission.set_terms("h0", Terms(2))
    stage.offer("h0")
    stage.offer("h0")
    stage.pass_time(0.2)
    for name in NAMES[1:38]:
        assert stage.offer(name) == START
    stage.reply("h0")
    assert stage.offer("h38") == START
    stage.pass_time(0.2)
    stage.answer("healthy", after=GRACE)
    stage.pass_time(GRACE)
    stage.offer("third")
    stage.offer("other")
    assert stage.cut_short() == ["h1"]


def test_unread_answers_are_read_before_calls_are_cut_short() -> None:
    """After a pause of this process all calls have been in flight for long, most were answered."""
    stage = a_stage()
    for name in NAMES:
        assert stage.offer(name) == START
    stage.offer("healthy")
    stage.pass_time(5.0)
    stage.reply("h39")
    stage.offer("other")
    assert stage.cut_short() == []


def test_a_late_answer_makes_no_other_call_an_outlier() -> None:
    stage = a_stage()
    for name in NAMES:
        assert stage.offer(name) == START
    stage.pass_time(0.2)
    stage.reply("h39")
    stage.offer("healthy")
    stage.offer("other")
    stage.pass_time(GRACE)
    assert stage.cut_short() == []


def test_a_call_is_not_cut_short_if_the_order_could_not_be_retried() -> None:
    stage = a_stage()
    for name in NAMES:
        stage.admission.set_terms(name, Terms(1, may_be_cut_short=False))
    hang(stage, 39)
    stage.offer("healthy")
    stage.offer("other")
    assert stage.cut_short() == []


def test_where_many_answers_are_late_only_silent_merchants_calls_are_cut_short() -> None:
    """This process may be the slow one: two hundred handshakes at once take it a while."""
    stage = a_stage()
    for name in NAMES:
        assert stage.offer(name) == START
    stage.pass_time(0.2)
    for name in NAMES[:15]:
        stage.reply(name, after=0.005)
    stage.answer("healthy", after=0.01)  # one of many
    for name in (*NAMES[:15], "other", "healthy"):
        stage.offer(name)
    stage.pass_time(GRACE)
    assert stage.cut_short() == []


def test_a_strangers_call_is_an_outlier_after_the_usual_first_answer() -> None:
    stage = a_stage(known=20)
    for n in range(33):
        stage.offer(f"stranger{n}")
    stage.starts()
    strangers = stage.admission.in_flight
    stage.pass_time(0.2)
    stage.answer("healthy", after=GRACE)
    stage.pass_time(GRACE)
    for name in NAMES[: 40 - strangers]:
        assert stage.offer(name) == START
    for name in ("healthy", "other"):
        assert stage.offer(name) is AdmissionVerdict.WAIT
    assert stage.cut_short() == ["stranger0", "stranger1"]


def test_a_strangers_call_goes_on_where_first_answers_take_longer_than_estimated() -> None:
    """Slow merchants that are new all at once do not hang."""
    stage = a_stage(known=20)
    for n in range(38):
        stage.offer(f"stranger{n}")
    stage.starts()
    stage.pass_time(2.0)
    for n in range(20):
        stage.reply(f"stranger{n}")
    for _ in range(13):  # most answers are in time
        stage.answer("healthy", after=0.02)
    stage.pass_time(GRACE)
    for name in (*NAMES[:20], "healthy", "other", "third"):
        stage.offer(name)
    assert stage.admission.waiting > 0
    assert stage.cut_short() == []


def test_a_returned_outlier_is_freed() -> None:
    stage = a_stage()
    for name in NAMES[:8]:
        stage.offer(name)
    stage.pass_time(1.0)
    outliers = stage.admission._health._outliers
    assert outliers.number == 8
    for n in (1, 3, 5, 7, 6, 4, 2):
        stage.reply(f"h{n}")
    assert len(outliers._known) + len(outliers._silent) <= 4  # h0 is still in flight
    stage.reply("h0")
    assert len(outliers._known) + len(outliers._silent) == 0


def test_a_call_that_was_cut_short_is_not_cut_short_again_once_its_merchant_is_silent() -> None:
    """Its slot would count as about to be free twice, and from then on one call less is ended."""
    stage = a_stage()
    hang(stage, 39)
    assert stage.offer("healthy") == START
    assert stage.offer("other") is AdmissionVerdict.WAIT
    assert stage.cut_short() == ["h0"]
    stage.pass_time(0.5)
    stage.pass_time(GRACE)
    assert stage.standing("h0").silent
    for name in NAMES[34:39]:  # many answers are late: only silent merchants' calls are ended
        stage.reply(name)
    assert stage.starts() == ["o"]
    for name in NAMES[34:38]:
        assert stage.offer(name) == START
    for name in (NAMES[38], "third"):
        assert stage.offer(name) is AdmissionVerdict.WAIT
    assert stage.cut_short() == ["h1"]


def test_a_merchant_with_varying_reply_times_is_an_outlier_later() -> None:
    stage = Stage(limit=1, slots=8)
    for seconds in (0.1, 0.9) * 10:
        stage.answer("erratic", after=seconds)
    for _ in range(20):
        stage.answer("steady", after=0.5)
    erratic = stage.admission._lane("erratic").latency.exceeded_after(3.0)
    steady = stage.admission._lane("steady").latency.exceeded_after(3.0)
    assert steady < 0.7
    assert 1.5 < erratic < 3
