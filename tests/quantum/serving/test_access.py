"""Access lists have one meaning: the page's examples, the rule that is named, what is withheld."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from clustor.control import AclAction, AclEffect, AclPolicy
from clustor.control import TenantAclRule as ControlRule
from quantum.node.access_page import AccessPage, AccessQuestion, explain_access
from quantum.protocols.mqtt.codec import ProtocolVersion
from quantum.tenancy import Operation, ResourceKind, TenantDescription
from quantum.tenants.control_words import TenantWord, compiled, connect_rules, describe
from quantum.tenants.policy import TenantGuard
from tests.quantum.serving.client import V5, V31, V311, connect
from tests.quantum.serving.tenant_lab import TenantLab

PAGE = Path(__file__).parents[3] / "docs" / "access-lists.md"
ALL = pytest.mark.parametrize("version", [V31, V311, V5], ids=["3.1", "3.1.1", "5"])
EVERYTHING_BUT_ONE: list[dict[str, object]] = [
    {"effect": "deny", "action": "subscribe", "pattern": "test/nosubscribe"},
    {"effect": "allow", "pattern": "#"},
]


class Example(NamedTuple):
    rules: bytes
    client: str
    principal: str
    action: str
    topic: str
    answer: str
    rule: str


def examples() -> list[Example]:
    """Read the page: a list of rules, and a table of what it means."""
    found = []
    for block in PAGE.read_text().split("```json\n")[1:]:
        rules, _, rest = block.partition("```")
        for line in re.findall(r"^\| (?!client|---)(.*) \|$", rest, re.MULTILINE):
            found.append(Example(rules.encode(), *(cell.strip() for cell in line.split("|"))))
    return found


def question(example: Example) -> AccessQuestion:
    """Read the topic, or the kind and the name of another resource."""
    kind, _, name = example.topic.partition(" ")
    if kind in [each.value for each in ResourceKind]:
        return AccessQuestion(example.action, name, ResourceKind(kind))
    return AccessQuestion(example.action, example.topic)


def guard_of(rules: bytes) -> TenantGuard:
    listed = tuple(msgspec.json.decode(rules, type=list[ControlRule]))
    policy = AclPolicy(tenant_id="acme", version=1, rules=listed)
    word = TenantWord("acme", acl=policy)
    guard = TenantGuard("acme", 0)
    guard.change(describe(word, TenantDescription()), 0)
    guard.connects = connect_rules(word)
    return guard


def test_the_page_has_examples() -> None:
    assert len(examples()) >= 15
    assert {each.action for each in examples()} == {each.value for each in Operation} | {"connect"}


@pytest.mark.parametrize(
    "example", examples(), ids=lambda each: f"{each.client}-{each.action}-{each.topic}"
)
def test_an_example_of_the_page_is_what_the_rules_say(example: Example) -> None:
    guard = guard_of(example.rules)
    verdict = explain_access(guard, example.principal, example.client.encode(), question(example))
    assert ("allowed" if verdict.allowed else "refused") == example.answer, verdict.sentence
    assert str(verdict.rule or "") == example.rule, verdict.sentence
    assert verdict.sentence.startswith(example.answer)
    if verdict.rule:
        assert f"rule {verdict.rule} (" in verdict.sentence


def test_an_unreadable_rule_does_not_shift_the_numbers_of_the_others() -> None:
    bad, good = (
        ControlRule(effect=AclEffect.ALLOW, action=AclAction.ANY, filter=each)
        for each in ("a/#/b", "a/#")
    )
    found = compiled(AclPolicy(tenant_id="a", version=1, rules=(bad, good)))
    assert [rule.number for rule in found.rules] == [2]


class TestWithheld:
    """Deny Subscribe `test/nosubscribe` and Allow Any `#`: nothing else is lost."""

    @ALL
    @pytest.mark.parametrize("qos", [0, 1, 2])
    @pytest.mark.parametrize("clean", [True, False], ids=["clean", "lasting"])
    def test_one_denied_topic_costs_nothing_else(
        self, version: ProtocolVersion, qos: int, clean: bool
    ) -> None:
        lab = TenantLab({"blue": {"acl": EVERYTHING_BUT_ONE}})
        reader = connect(lab.door("blue"), version, client_id="reader", clean=clean)
        assert reader.subscribe(b"test/nosubscribe", qos).is_failure
        for topic_filter in (b"#", b"test/+", b"+/nosubscribe"):
            assert not reader.subscribe(topic_filter, qos).is_failure
            writer = connect(lab.door("blue"))
            for topic in (b"test/nosubscribe", b"test/a", b"test/nosubscribe", b"x/nosubscribe"):
                writer.publish(topic, topic, qos)
            heard = [b"test/a"] if topic_filter == b"test/+" else [b"x/nosubscribe"]
            heard = [b"test/a", b"x/nosubscribe"] if topic_filter == b"#" else heard
            assert [reader.take().topic for _ in heard] == heard
            reader.expect_quiet()
            reader.unsubscribe(topic_filter)

    def test_what_is_retained_is_withheld_too(self) -> None:
        lab = TenantLab({"blue": {"acl": EVERYTHING_BUT_ONE}})
        writer = connect(lab.door("blue"))
        for topic in (b"test/nosubscribe", b"test/open"):
            writer.publish(topic, topic, 1, retain=True)
        reader = connect(lab.door("blue"))
        reader.subscribe(b"test/#", 1)
        assert reader.take().topic == b"test/open"
        reader.expect_quiet()

    @pytest.mark.parametrize("qos", [1, 2])
    def test_more_than_a_window_of_it_holds_nothing_up(self, qos: int) -> None:
        """A withheld message gives its slot back, of the machine's and of the connection's."""
        lab = TenantLab({"blue": {"acl": EVERYTHING_BUT_ONE}})
        options = {"client_id": "dev", "clean": False, "session_expiry_interval": 60}
        reader = connect(lab.door("blue"), receive_maximum=2, **options)  # type: ignore[arg-type]
        reader.subscribe(b"#", qos)
        reader.cut()
        writer = connect(lab.door("blue"))
        for _ in range(20):
            writer.publish(b"test/nosubscribe", b"", qos)
        writer.publish(b"after", b"", qos)
        reader = connect(lab.door("blue"), receive_maximum=2, **options)  # type: ignore[arg-type]
        assert reader.take().topic == b"after"
        reader.expect_quiet()
        assert (
            sum(
                len(each.state.sessions[b"dev"].outbound)
                for each in lab.machines("blue")
                if b"dev" in each.state.sessions
            )
            == 0
        )

    def test_rules_that_come_later_withhold_at_once(self) -> None:
        lab = TenantLab({"blue": {}})
        reader, writer = connect(lab.door("blue")), connect(lab.door("blue"))
        reader.subscribe(b"#", 1)
        lab.describe({"blue": {"acl": EVERYTHING_BUT_ONE}})
        writer.publish(b"test/nosubscribe", b"", 1)
        writer.publish(b"test/other", b"", 1)
        assert reader.take().topic == b"test/other"
        reader.expect_quiet()


def test_the_page_of_a_node_answers_for_who_is_connected() -> None:
    lab = TenantLab({"blue": {"acl": [{"effect": "allow", "pattern": "x", "principals": ["me"]}]}})
    connect(lab.door("blue", "me"), client_id="dev")
    page = AccessPage(lab.service)
    found = page.get("/clients/dev/access", {"action": "Publish", "topic": "x"})
    assert found is not None and found[0] == 200
    body = found[1]
    assert isinstance(body, dict)
    assert (body["allowed"], body["principal"], body["rule"]) == (True, "me", 1)
    assert page.get("/clients/dev/access", {"action": "eat", "topic": "x"})[0] == 400  # type: ignore[index]
    assert page.get("/clients/dev/access", {"action": "publish"})[0] == 400  # type: ignore[index]
    assert page.get("/clients/dev/access", {"action": "connect", "tenant": "no"})[0] == 404  # type: ignore[index]
    assert page.get("/clients/dev/why", {}) is None
