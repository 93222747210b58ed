"""Every row that the program prints, and every committed one, is valid by lab/schema.json; and the
schema refuses what must never be published."""
import copy
import json
import pathlib
import subprocess
import sys

import jsonschema

program, lab = sys.argv[1], pathlib.Path(sys.argv[2])
schema = json.loads((lab / "schema.json").read_text())
jsonschema.Draft202012Validator.check_schema(schema)
validator = jsonschema.Draft202012Validator(schema)

printed = subprocess.run(
    [program, "bench", "--device", "cpu", "--shape", "tiny", "--json"],
    check=True, capture_output=True, text=True).stdout
rows = [json.loads(line) for line in printed.splitlines()]
assert any(r["op"] == "softmax" for r in rows) and any(r["op"] == "vector_add" for r in rows)
for number, row in enumerate(rows, 1):
    errors = [e.message for e in validator.iter_errors(row)]
    assert not errors, f"row {number}: {errors}"
for file in sorted((lab / "results").glob("*.jsonl")):
    for number, line in enumerate(file.read_text().splitlines(), 1):
        errors = [e.message for e in validator.iter_errors(json.loads(line))]
        assert not errors, f"{file}:{number}: {errors}"

own = next(r for r in rows if r["provider"] == "ninefold" and r["check"] == "passed")


def refused(why, **changes):
    row = copy.deepcopy(own)
    row.update(changes)
    assert not validator.is_valid(row), why


refused("a time without a passed check", check="failed", reason="wrong")
refused("a missing baseline without a reason", check="absent", ms=None, gbps=None, ratio=None,
        verdict=None, rival=None, samples_ms=[], reason=None)
refused("a ratio without a rival", ratio=[1.0, 1.1, 1.2], rival=None, verdict="WIN")
refused("an unknown verdict", verdict="DRAW")
refused("a key that nobody knows", surprise=1)
for key in schema["required"]:
    row = copy.deepcopy(own)
    del row[key]
    assert not validator.is_valid(row), f"a row without {key}"
print(f"{len(rows)} rows are valid")
