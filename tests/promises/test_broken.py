"""The list of broken promises goes with the sources and the tests as they are."""

from __future__ import annotations

import re

from tests.promises.broken import BREAKS, ROOT, changed
from tests.promises.report import PROMISES


def test_every_promise_can_be_broken_where_its_test_looks() -> None:
    """Each change applies to its file, and each test is marked with the promise that it is for."""
    assert {broken.promise for broken in BREAKS} == set(PROMISES)
    for broken in BREAKS:
        compile(changed(broken), broken.file, "exec")
        file, _, name = broken.test.partition("::")
        source = (ROOT / file).read_text("utf-8")
        found = re.search(rf"((?:^@.*\n(?:^[ )].*\n)*)+)def {name}\b", source, re.MULTILINE)
        assert found is not None, broken.test
        assert f"@pytest.mark.promise({broken.promise})" in found[1], broken.test
