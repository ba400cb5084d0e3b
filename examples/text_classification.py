"""Classify text with sparse TF-IDF features: SSOClassifier in a scikit-learn pipeline.

Needs the extra ``sklearn``. Runs offline in a second: the documents are made here, from two topics that
share most of their words.

    python examples/text_classification.py
"""

from __future__ import annotations

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline

from targetopt.sklearn import SSOClassifier

SHARED = ["report", "said", "year", "new", "people", "time", "week", "last", "first", "day", "over"]
TOPICS = {
    "markets": ["shares", "profit", "bank", "trade", "stocks", "dollar", "price", "growth"],
    "sport": ["match", "team", "season", "goal", "coach", "league", "player", "score"],
}


def documents(number: int, seed: int) -> tuple[list[str], list[str]]:
    """Documents of 30 words, about two of them telling of the topic."""
    generator = np.random.default_rng(seed)
    texts, labels = [], []
    for _ in range(number):
        label = str(generator.choice(list(TOPICS)))
        telling = generator.random(30) < 0.06
        words = [str(generator.choice(TOPICS[label] if t else SHARED)) for t in telling]
        texts.append(" ".join(words))
        labels.append(label)
    return texts, labels


def main() -> None:
    texts, labels = documents(2000, seed=0)
    train, test, y_train, y_test = train_test_split(texts, labels, random_state=0)

    # alpha is the only thing to choose; there is no learning rate.
    search = GridSearchCV(
        make_pipeline(TfidfVectorizer(), SSOClassifier()),
        {"ssoclassifier__alpha": [1e-5, 1e-4, 1e-3]},
        cv=3,
    )
    search.fit(train, y_train)
    model = search.best_estimator_
    classifier = model[-1]
    print(f"alpha {classifier.alpha:g}, {classifier.n_iter_[0]} steps")
    print(f"accuracy on held-out documents: {model.score(test, y_test):.3f}")

    words = model[0].get_feature_names_out()
    order = np.argsort(classifier.coef_[0])
    print(f"most typical of {classifier.classes_[0]}:", *words[order[:5]])
    print(f"most typical of {classifier.classes_[1]}:", *words[order[-5:]])

    # More documents arrive: learn from them alone, keeping what is known.
    more, y_more = documents(500, seed=1)
    classifier.partial_fit(model[0].transform(more), y_more)
    print(f"after 500 more documents: {model.score(test, y_test):.3f}")


if __name__ == "__main__":
    main()
