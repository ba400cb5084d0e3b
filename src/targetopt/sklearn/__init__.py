"""scikit-learn estimators on the full-batch SSO solver: linear models, nothing to tune but ``alpha``.

Both minimise

    F(w, b) = Σ_i s_i ℓ_i(x_i·w + b) / Σ_i s_i + ½ alpha ‖w‖²

with the sample weights s_i; the intercept is not penalised. A weighted row counts as that many equal
rows. ``LogisticRegression(C=C)`` on n rows is ``alpha = 1/(C·n)``, ``Ridge(alpha=a)`` is
``alpha = a/n`` (for weighted data read Σ s_i for n).
"""

from targetopt.sklearn.classifier import SSOClassifier
from targetopt.sklearn.regressor import SSORegressor

__all__ = ["SSOClassifier", "SSORegressor"]
