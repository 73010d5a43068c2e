/** Shows the load of devices during sampling, and their used memory. */
import { useEffect, useMemo, useState } from "react";
import { loadOf, recentWork, type Work, WINDOW_S } from "../jobs/load";
import { deviceLook } from "../plan/model/words";
import { memories, type Memory } from "../server/devices";
import { notify, useLive } from "../state/live";

/** Milliseconds between requests. */
const POLL_INTERVAL_MS = 2_000;
const NO_WORK: readonly Work[] = [];

export function DevicesPanel() {
  const byId = useLive(({ jobs }) => jobs.byId);
  const [known, setKnown] = useState<readonly Memory[]>([]);
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout>;
    let over = false;
    const ask = async () => {
      if (!document.hidden) await memories().then(setKnown, notify);
      if (!over) timer = setTimeout(() => void ask(), POLL_INTERVAL_MS);
    };
    void ask();
    return () => {
      over = true;
      clearTimeout(timer);
    };
  }, []);
  const work = useMemo(() => recentWork(Object.values(byId)), [byId]);
  return (
    <aside className="side devices" aria-label="devices">
      <h2>Devices</h2>
      <ul>
        {known.map(({ name, total, free }, at) => (
          <li key={name} className={deviceLook(at)} aria-label={name}>
            <h3>{name}</h3>
            <Bar label="memory" share={total > 0 ? (total - free) / total : 0}>
              {gigabytes(total - free)} of {gigabytes(total)} GB
            </Bar>
            {name !== "server" && <Load work={work.get(name) ?? NO_WORK} />}
          </li>
        ))}
      </ul>
      <p className="remark">
        Load and lanes are those of your jobs that sample, over the last {WINDOW_S} seconds.
      </p>
    </aside>
  );
}

function Bar({
  label,
  share,
  children,
}: {
  readonly label: string;
  readonly share: number;
  readonly children: React.ReactNode;
}) {
  return (
    <p className="share">
      <span>{label}</span>
      <meter aria-label={label} value={share} />
      <span>{children}</span>
    </p>
  );
}

function Load({ work }: { readonly work: readonly Work[] }) {
  const load = loadOf(work);
  return (
    <>
      <Bar label="load" share={load}>
        {Math.round(100 * load)} %
      </Bar>
      <svg
        viewBox={`0 0 ${WINDOW_S} 1`}
        preserveAspectRatio="none"
        role="img"
        aria-label={`${work.length} spans of work`}
      >
        {work.map(({ start, seconds, what, computes }) => (
          <rect
            key={`${start} ${what}`}
            className={computes ? "span" : "span link-span"}
            x={start}
            y={computes ? 0 : 0.55}
            width={seconds}
            height={computes ? 1 : 0.45}
          >
            <title>{what}</title>
          </rect>
        ))}
      </svg>
    </>
  );
}

function gigabytes(bytes: number): string {
  return (bytes / 1e9).toFixed(1);
}
