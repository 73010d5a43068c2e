/** Shows a job to everyone with its link: its state, results and settings, read-only. */
import { useEffect, useState } from "react";
import { addressOf, asked } from "../server/client";
import { copyLink } from "../server/jobLinks";
import { type SharedJob, sharedJob } from "./shared";
import "./jobPage.css";

/** Milliseconds between requests until the job ends. */
const POLL_INTERVAL_MS = 2_000;

export function JobPage({ id }: { readonly id: string }) {
  const [job, setJob] = useState<SharedJob | null>(null);
  const [trouble, setTrouble] = useState("");
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout>;
    let left = false;
    const look = async () => {
      try {
        const now = sharedJob(await asked(`api/jobs/${encodeURIComponent(id)}`));
        setJob(now);
        setTrouble("");
        if (now.over) return;
      } catch (error) {
        setTrouble(error instanceof Error ? error.message : String(error));
      }
      if (!left) timer = setTimeout(() => void look(), POLL_INTERVAL_MS);
    };
    void look();
    return () => {
      left = true;
      clearTimeout(timer);
    };
  }, [id]);
  useEffect(() => {
    document.title = `${job?.status ?? "job"} · Katz Graph`;
  }, [job]);
  return (
    <main className="job-page" aria-label="job">
      <h1>Job {id.slice(0, 8)}</h1>
      {trouble !== "" && <p role="alert">{trouble}</p>}
      {job !== null && <Shown id={id} job={job} />}
    </main>
  );
}

function Shown({ id, job }: { readonly id: string; readonly job: SharedJob }) {
  const seconds = job.ended > 0 && job.started > 0 ? (job.ended - job.started) / 1000 : null;
  return (
    <>
      <p role="status">
        {job.status}
        {seconds !== null && ` in ${seconds.toFixed(2)} s`}, sent{" "}
        {new Date(job.created).toLocaleString()}
      </p>
      {job.error !== "" && <p className="missing">{job.error}</p>}
      <ul className="made">
        {job.pictures.map((picture) => (
          <li key={addressOf(picture)}>
            <a href={addressOf(picture)}>
              <img src={addressOf(picture, 512)} alt={picture.filename} />
            </a>
          </li>
        ))}
      </ul>
      {job.texts.map((text) => (
        <p key={text}>{text}</p>
      ))}
      {job.over && <a href={copyLink(id)}>Open a copy in the editor</a>}
      <h2>Settings</h2>
      <dl>
        {job.nodes
          .filter(({ values }) => values.length > 0)
          .map(({ id: node, title, values }) => (
            <div key={node}>
              <dt>
                {title} <small>#{node}</small>
              </dt>
              {values.map(([name, value]) => (
                <dd key={name}>
                  <small>{name}</small> {value}
                </dd>
              ))}
            </div>
          ))}
      </dl>
    </>
  );
}
