"""Which isolation is chosen, and that a machine without any is refused with the reason."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from agon.config import CodeConfig, TaskConfig
from agon.errors import ConfigError
from agon.preflight import check_sandbox
from agon.sandbox import Kind, NoIsolation, Sandbox, Unavailable, describe, isolation, open_sandbox


def python(code: str, user: int | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        user=user,
        check=False,
    )


def available(kind: Kind) -> bool:
    try:
        Sandbox(kind).close()
    except Unavailable:
        return False
    return True


def test_the_strongest_is_the_first_that_works_and_never_limits() -> None:
    working = [kind for kind in isolation.STRONG if available(kind)]
    if not working:
        with pytest.raises(NoIsolation):
            open_sandbox("strongest")
        pytest.skip("neither bubblewrap nor namespaces work here")
    with open_sandbox("strongest") as sandbox:
        assert sandbox.kind == working[0]
        assert sandbox.kind != "limits"


def test_what_is_named_is_used_and_said(sandbox: Sandbox) -> None:
    with open_sandbox(sandbox.kind) as opened:
        assert opened.kind == sandbox.kind
        text = describe(opened)
    assert opened.interpreter in text
    assert ("READ WHAT THEIR USER CAN READ" in text) == (sandbox.kind == "limits")


def test_a_second_kind_is_tried_where_the_first_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def probed(kind: Kind) -> str:
        asked.append(kind)
        if kind == "bubblewrap":
            raise Unavailable("not installed")
        return f"a sandbox of {kind}"

    monkeypatch.setattr(isolation, "_probed", probed)
    assert str(open_sandbox("strongest")) == "a sandbox of namespaces"
    assert asked == ["bubblewrap", "namespaces"]


def test_where_none_works_each_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    def probed(kind: Kind) -> Sandbox:
        raise Unavailable(f"no {kind} today")

    monkeypatch.setattr(isolation, "_probed", probed)
    with pytest.raises(NoIsolation) as error:
        open_sandbox("strongest")
    assert str(error.value) == ("bubblewrap: no bubblewrap today; namespaces: no namespaces today")


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="no filter to deny by")
def test_a_system_that_forbids_namespaces_is_refused_with_the_system_s_reason() -> None:
    code = (
        "from agon.sandbox import NoIsolation, linux, open_sandbox, seccomp\n"
        "linux.forbid_new_privileges()\n"
        "linux.install_filter(seccomp.build_filter())\n"  # no unshare, no mount
        "try: open_sandbox('strongest')\n"
        "except NoIsolation as reasons: print(reasons)\n"
    )
    result = python(code)
    assert result.returncode == 0, result.stderr
    assert "bubblewrap: " in result.stdout
    assert "namespaces: unshare(): Operation not permitted" in result.stdout
    assert "user.max_user_namespaces" in result.stdout


def test_a_probe_that_fails_is_a_reason(monkeypatch: pytest.MonkeyPatch, sandbox: Sandbox) -> None:
    monkeypatch.setattr(isolation, "_PROBE", b"raise ValueError('%(filtered)r %(walled)r')")
    with pytest.raises(NoIsolation, match="ValueError"):
        open_sandbox(sandbox.kind)


def test_a_task_with_programs_is_refused_before_its_data_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def probed(kind: Kind) -> Sandbox:
        raise Unavailable(f"no {kind} today")

    monkeypatch.setattr(isolation, "_probed", probed)
    task = TaskConfig(name="mbpp", path="/nowhere")
    with pytest.raises(ConfigError) as error:
        check_sandbox(task, CodeConfig())
    text = str(error.value)
    assert "no namespaces today" in text
    assert 'code.isolation = "limits"' in text
    assert check_sandbox(TaskConfig(name="gsm8k"), CodeConfig()) is None


def test_a_task_with_programs_says_what_is_in_force(sandbox: Sandbox) -> None:
    said = check_sandbox(TaskConfig(name="mbpp"), CodeConfig(isolation=sandbox.kind))
    assert said is not None
    assert isolation.COVERS[sandbox.kind] in said


def test_the_modules_import_where_there_is_no_linux() -> None:
    code = (
        "import platform, sys\nplatform.system = lambda: 'Darwin'\nsys.platform = 'darwin'\n"
        "from agon.sandbox import Unavailable, kinds\nimport agon.sandbox.launcher\n"
        "try: kinds.prepare('namespaces')\nexcept Unavailable as reason: print(reason)"
    )
    assert "Linux only, and this is Darwin" in python(code).stdout


def test_neither_torch_nor_pydantic_is_imported() -> None:
    code = (
        "import sys\nimport agon.sandbox.launcher, agon.verifiers.code\n"
        "print([name for name in ('torch', 'pydantic', 'datasets') if name in sys.modules])"
    )
    assert python(code).stdout == "[]\n"
