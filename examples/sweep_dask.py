"""Sweep over networks for digits with scikit-learn's grid search, in the processes of Dask.

    pip install "phitodeep[sklearn]" "dask[distributed]"
    python examples/sweep_dask.py [--workers 2] [--epochs 20] [--compare]
    python examples/sweep_dask.py --scheduler tcp://10.0.0.5:8786    # a cluster that runs already

The grid has 8 settings, and each is trained on 3 folds: 24 networks. A worker is a process with one
thread. The scores are the same for every number of workers. With --compare, the same search also
runs without Dask: in this process, and in as many processes of joblib as there are workers.
"""

import argparse
import time

from dask.distributed import Client, LocalCluster
from joblib import parallel_config
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, train_test_split

import phitodeep
from phitodeep.sklearn import PhitoClassifier

GRID = {"hidden": [(32,), (64, 64)], "dropout": [0.0, 0.2], "learning_rate": [0.003, 0.015]}


def run(client: Client, search: GridSearchCV, *data: object) -> None:
    """Run a search in the cluster's workers, with one thread for each network."""
    client.run(phitodeep.set_threads, 1)  # Dask's own workers have this limit already
    with parallel_config(backend="dask"):
        search.fit(*data)


def show(search: GridSearchCV) -> None:
    """Print the settings and their scores, the best first."""
    found = search.cv_results_
    print("rank  accuracy      hidden    dropout  rate   seconds per fit")
    for i in found["rank_test_score"].argsort(kind="stable"):
        setting, accuracy = found["params"][i], found["mean_test_score"][i]
        print(
            f"{found['rank_test_score'][i]:4}  {accuracy:.4f} ± {found['std_test_score'][i]:.3f}"
            f"  {setting['hidden']!s:8}  {setting['dropout']:7}  {setting['learning_rate']:<5}"
            f"  {found['mean_fit_time'][i]:.2f}"
        )


def main(
    workers: int = 2, epochs: int = 20, scheduler: str | None = None, compare: bool = False
) -> GridSearchCV:
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, stratify=y, random_state=0)

    def new_search(jobs: int | None = None) -> GridSearchCV:
        return GridSearchCV(PhitoClassifier(epochs=epochs, random_state=0), GRID, cv=3, n_jobs=jobs)

    search, seconds = new_search(), dict[str, float]()
    if compare:  # before the cluster starts, so that its processes take no time
        for name, jobs in (("this process", None), (f"joblib, {workers} processes", workers)):
            began = time.perf_counter()
            new_search(jobs).fit(X, y)
            seconds[name] = time.perf_counter() - began

    phitodeep.get_threads()  # reads this process's limit, before a local cluster sets it to 1
    began = time.perf_counter()
    if scheduler is not None:
        with Client(scheduler) as client:
            run(client, search, X, y)
    else:
        with (
            LocalCluster(
                n_workers=workers, threads_per_worker=1, dashboard_address="127.0.0.1:0"
            ) as cluster,
            Client(cluster) as client,
        ):
            print(f"{workers} workers started in {time.perf_counter() - began:.1f} s")
            run(client, search, X, y)
    seconds["Dask, from start to end"] = time.perf_counter() - began

    show(search)
    for name, value in seconds.items():
        print(f"{name}: {value:.1f} s")
    print(f"accuracy of the best network on new digits: {search.score(X_test, y_test):.4f}")
    return search


if __name__ == "__main__":  # the workers import this file
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2, help="processes of the local cluster")
    parser.add_argument("--epochs", type=int, default=20, help="of each network")
    parser.add_argument("--scheduler", metavar="ADDRESS", help="of a cluster that runs already")
    parser.add_argument("--compare", action="store_true", help="also run it without Dask")
    main(**vars(parser.parse_args()))
