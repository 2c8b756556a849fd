"""Commands that score: sweep, optimize."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from jaxsppl.cli.terminal import Flag, Json, Overrides, Several, Whole, emit, pairs_of, words_of

Inputs = Annotated[list[str] | None, Parameter(name="--input", negative="", consume_multiple=True)]


def sweep(
    file: Path,
    /,
    *,
    overrides: Overrides = None,
    inputs: Inputs = None,
    out: Path | None = None,
    dask: str | None = None,
    dry_run: Annotated[bool, Flag] = False,
    json: Json = False,
) -> int:
    """Score every setting of a grid on harvest files.

    Parameters
    ----------
    file
        Sweep config (TOML).
    overrides
        Set a key of the config, for example grid.min_p=[0,0.05]; may be given several times.
    inputs
        Harvest files, folders or patterns; run.out/*.harvest.nc by default.
    out
        The sweep file; run.out/NAME.sweep.nc by default. A sweep that was stopped goes on from
        its finished parts.
    dask
        Compute on the workers of a scheduler (tcp://host:port), of a scheduler file, or on N
        processes here (local:N); needs the extra jaxsppl[dask].
    dry_run
        Say what would be computed and how, and compute nothing.
    """
    from jaxsppl import config, results
    from jaxsppl.report.table import describe, render, to_data

    settings = config.load(file, overrides or ())
    files = results.input_files(settings, inputs or ())
    paths = results.sweep_paths(settings, out)
    if dry_run:
        plans = results.plan(settings, files)
        text = "\n\n".join(
            f"{paths[name]}:\n{plan.text().rstrip()}" for name, plan in plans.items()
        )
        data = {str(paths[name]): plan.to_dict() for name, plan in plans.items()}
        emit(json, text, {"plans": data})
        return 0
    for name, order in settings.orders().items():
        results.sweep_to(paths[name], settings, order, files, dask)
    summaries = [describe(path) for path in paths.values()]
    text = "\n\n".join(render(summary).rstrip() for summary in summaries)
    written = "\n".join(f"written: {path}" for path in paths.values())
    emit(
        json,
        f"{text}\n\n{written}",
        {
            "written": list(paths.values()),
            "files": [to_data(summary) for summary in summaries],
        },
    )
    return 0


def optimize(
    sources: Annotated[list[Path], Parameter(negative="", metavar="CONFIG|HARVEST")],
    /,
    *,
    over: str | None = None,
    fixed: Annotated[list[str] | None, Several] = None,
    starts: Whole | None = None,
    seed: Whole | None = None,
    pooled: Annotated[bool, Flag] = False,
    method: Literal["lbfgs", "adam"] | None = None,
    bounds: Annotated[list[str] | None, Several] = None,
    overrides: Overrides = None,
    inputs: Inputs = None,
    out: Path | None = None,
    csv: Path | None = None,
    json: Json = False,
) -> int:
    """Find the best setting from many starts.

    Parameters
    ----------
    sources
        A sweep config (TOML), or harvest files.
    over
        Parameters, comma-separated; those of the config, else temperature,alpha,beta. A gradient
        moves these, dynatemp_range, dynatemp_exponent, smoothing_factor, smoothing_curve,
        xtc_probability and skew; of others, as top_k and min_p, several values are tried: those of
        the config's axis (or of --set grid.min_p=[0,0.05]), or usual ones.
    fixed
        Parameters that are held, for example min_p=0.05.
    starts
        Number of starts.
    seed
        Decides where the starts lie.
    pooled
        Optimize all datasets of a model together too.
    method
        lbfgs (the default) or adam.
    bounds
        Limits of what a gradient moves, for example temperature=0.3:2.
    overrides
        Set a key of the config; may be given several times. For example grid.min_p=[0.05];
        objective.ood_max=0.15 for the least nll with at most this share of tokens lost;
        decide.folds=5 for a proof on held-out documents.
    inputs
        Harvest files for a config; run.out/*.harvest.nc by default.
    out
        The optimum file; run.out/NAME.optimum.nc by default.
    csv
        Write every start to this CSV file too.
    """
    from jaxsppl.optimum_task import optimize_task
    from jaxsppl.report.table import describe, render, to_data

    task = optimize_task(
        [str(source) for source in sources],
        overrides=overrides or (),
        inputs=inputs or (),
        over=words_of(over) if over is not None else None,
        fixed=pairs_of(fixed or [], "--fixed"),
        starts=starts,
        seed=seed,
        pooled=pooled,
        method=method,
        bounds=pairs_of(bounds or [], "--bounds"),
        out=out,
    )
    task.write(csv)
    summary = describe(task.path)
    emit(
        json,
        f"{render(summary).rstrip()}\n\nwritten: {task.path}",
        {"written": task.path, "files": [to_data(summary)]},
    )
    return 0
