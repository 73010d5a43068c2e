/** The addresses of pages about jobs, within the server. */

/** The page that shows a job, and nothing can be changed on. */
export function jobLink(job: string): string {
  return new URL(`?job=${encodeURIComponent(job)}`, document.baseURI).href;
}

/** The editor, with a copy of a job's workflow. */
export function copyLink(job: string): string {
  return new URL(`?copy=${encodeURIComponent(job)}`, document.baseURI).href;
}

/** What the address of this page asks for. */
export function askedFor(what: "job" | "copy"): string | null {
  return new URLSearchParams(location.search).get(what);
}
