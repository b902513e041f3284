"""Evaluates events with the policy of the Python package, for TestPolicyPython.

A line in: {"policy": {...}, "event": "an event line"}.
A line out: {"findings": [[category, severity, detail], ...]} or {"raises": "..."}.
"""

import json
import sys
from pathlib import Path

from mcpfz_probe import RuntimeEvent, RuntimePolicy, evaluate_events

for line in sys.stdin:
    case = json.loads(line)
    try:
        fields = case["policy"]
        kwargs = {
            key: tuple(fields[key])
            for key in ("exec_allow", "net_allow", "fs_write_allow", "sensitive_patterns")
        }
        policy = RuntimePolicy(
            workspace=Path(fields["workspace"]), tmpdir=Path(fields["tmpdir"]), **kwargs
        )
        events = [RuntimeEvent.from_json(case["event"])]
        found = [[f.category, f.severity, f.detail] for f in evaluate_events(events, policy)]
        answer = {"findings": found}
    except Exception as error:  # the test wants to know of any
        answer = {"raises": repr(error)}
    print(json.dumps(answer), flush=False)
