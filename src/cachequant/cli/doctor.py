"""`cachequant doctor`: what this machine is, which kernels it runs, which models, texts and engines are at hand."""

import warnings
from typing import Annotated, Any

import typer

from cachequant.cli import output
from cachequant.errors import CachequantError, InputError


def register(app: typer.Typer) -> None:
    app.command(epilog=output.example("cachequant doctor", "cachequant doctor --warm --json"))(doctor)


def doctor(
    warm: Annotated[bool, typer.Option("--warm", help="Compile all kernels into the cache folder.")] = False,
    json: output.Json = False,
) -> None:
    """Describe this machine.

    CPU, kernels and their self-check, memory, versions, cache folder, models, texts, engines to compare with.
    Exit code 1 if something is broken; what is only missing is listed with the way to get it.
    """
    with output.quiet(json), output.progress("looking", json) as report:
        found = examine()
        if warm:
            from cachequant.cli import warming

            found["warmed_seconds"] = warming.compile_all(report)
    output.show(found, json, _print)
    if not found["ok"]:
        raise typer.Exit(1)


def examine() -> dict[str, Any]:
    """What --json prints."""
    import psutil

    from cachequant import kernels
    from cachequant.assets import cachedir
    from cachequant.cli import inventory
    from cachequant.kernels import cpu
    from cachequant.study import provenance

    memory = psutil.virtual_memory()
    chosen, problems = _kernel_set()
    sizes = dict.fromkeys(cachedir.KINDS, 0)
    for entry in cachedir.entries():
        sizes[entry.kind] += entry.bytes
    return {
        "ok": not problems,
        "problems": problems,
        "cpu": {**provenance.cpu(), "architecture": cpu.architecture(), "cache_bytes": cpu.cache_bytes()},
        "threads": kernels.get_threads(),
        "kernels": chosen,
        "auto": _auto() if chosen else None,
        "memory": {"total_bytes": memory.total, "available_bytes": memory.available},
        "versions": provenance.versions(),
        "cache": {"folder": str(cachedir.root()), "bytes": sizes},
        "models": inventory.models(),
        "texts": inventory.texts(),
        "peers": inventory.peers(),
    }


def _kernel_set() -> tuple[str | None, list[str]]:
    """Name of the kernel set in use, and what the self-check found wrong with it or with a better one."""
    from cachequant.kernels import selfcheck

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        selfcheck.first_sound.cache_clear()
        try:
            name, fault = selfcheck.active().name, []
        except InputError:
            raise  # CACHEQUANT_KERNELS names an unknown set
        except CachequantError as error:
            name, fault = None, [str(error)]
    return name, [str(w.message) for w in caught if issubclass(w.category, UserWarning)] + fault


def _auto() -> dict[str, str]:
    """What the scheme ``auto`` stands for here: {scheme, source, why}."""
    from dataclasses import asdict

    from cachequant import tuning

    return asdict(tuning.current())


def _print(found: dict[str, Any]) -> None:
    cpu, memory, sizes = found["cpu"], found["memory"], found["cache"]["bytes"].items()
    caches = ", ".join(f"{level} {output.size(count)}" for level, count in cpu["cache_bytes"].items())
    output.pairs(
        [
            ("CPU", f"{cpu['model']} ({cpu['architecture']}), {cpu['cores']} cores, {cpu['logical']} logical"),
            ("caches", caches),
            ("instruction sets", ", ".join(cpu["instruction_sets"])),
            ("kernels", f"{found['kernels'] or 'none'}, self-check {'passed' if found['ok'] else 'FAILED'}"),
            *([("scheme auto", f"{auto['scheme']}, {auto['why']}")] if (auto := found["auto"]) else []),
            ("threads", found["threads"]),
            ("memory", f"{output.size(memory['total_bytes'])}, {output.size(memory['available_bytes'])} available"),
            ("versions", ", ".join(f"{name} {version}" for name, version in found["versions"].items())),
            ("cache folder", found["cache"]["folder"]),
            (
                "cache sizes",
                ", ".join(f"{k} {output.size(b)}" for k, b in sizes if b) or "empty",
            ),
            *((f"model {m['name']}", m["state"]) for m in found["models"]),
            *((f"text {t['name']}", t["state"]) for t in found["texts"]),
            *((f"engine {p['name']}", p["state"]) for p in found["peers"]),
        ]
    )
    if "warmed_seconds" in found:
        typer.echo(f"compiled all kernels in {found['warmed_seconds']:.1f} s")
    for problem in found["problems"]:
        output.note(f"broken: {problem}")
