/** Loads a part of the page when it is first shown, so that the page itself loads faster. */
import { type ComponentType, lazy, type ReactNode, Suspense } from "react";

export function lazyPart<Props extends object>(
  load: () => Promise<ComponentType<Props>>,
): (props: Props) => ReactNode {
  const Part = lazy(() =>
    load().then(
      (part) => ({ default: part }),
      () => ({ default: NotThere }),
    ),
  );
  return (props) => (
    <Suspense fallback={null}>
      <Part {...props} />
    </Suspense>
  );
}

/** Shown if the server does not respond, or has other files since an upgrade. */
function NotThere() {
  return (
    <p className="side empty" role="alert">
      This part of the page cannot be loaded. Reload: no document is lost.
    </p>
  );
}
