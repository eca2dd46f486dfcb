/** Hooks: a page that is asked for again and again while somebody looks at it. */

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { look, Refused } from "./api";

export interface Asked<Answer> {
  answer: Answer | null;
  problem: Refused | null;
  again: () => void;
}

/** Ask `path` (null: nothing is asked), and again every `everyMs` while the tab is seen. */
export function useAsked<Answer>(path: string | null, everyMs = 0): Asked<Answer> {
  const [held, hold] = useState<{ path: string | null; answer: Answer | null }>({ path, answer: null });
  const [problem, setProblem] = useState<Refused | null>(null);
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    if (path === null) return;
    let over = false;
    let timer = 0;
    const ask = async () => {
      if (!document.hidden) {
        try {
          const answer = await look<Answer>(path);
          if (!over) {
            hold({ path, answer });
            setProblem(null);
          }
        } catch (error) {
          if (!over) setProblem(error instanceof Refused ? error : new Refused(0, "", String(error), ""));
        }
      }
      if (!over && everyMs > 0) timer = window.setTimeout(ask, everyMs);
    };
    void ask();
    return () => {
      over = true;
      window.clearTimeout(timer);
    };
  }, [path, everyMs, turn]);
  const again = useCallback(() => setTurn((before) => before + 1), []);
  return { answer: held.path === path ? held.answer : null, problem, again };
}

export interface Doing {
  busy: boolean;
  said: string;
  problem: Refused | null;
  /** Do one thing at a time; `done` says in words what became of it. */
  run: (work: () => Promise<string>) => Promise<boolean>;
}

export function useDoing(): Doing {
  const [state, setState] = useState({ busy: false, said: "", problem: null as Refused | null });
  const running = useRef(false);
  const run = async (work: () => Promise<string>) => {
    if (running.current) return false;
    running.current = true;
    setState({ busy: true, said: "", problem: null });
    try {
      const said = await work();
      setState({ busy: false, said, problem: null });
      return true;
    } catch (error) {
      const problem = error instanceof Refused ? error : new Refused(0, "", String(error), "");
      setState({ busy: false, said: "", problem });
      return false;
    } finally {
      running.current = false;
    }
  };
  return { ...state, run };
}
