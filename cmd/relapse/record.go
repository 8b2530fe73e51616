package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/framework/report"
)

// raceOf are the trials of a scenario's affected variants; nil if it is not probabilistic.
func raceOf(s framework.Scenario) *framework.Trials {
	for _, v := range s.Variants {
		if v.Role != framework.Affected || v.Script == nil {
			continue
		}
		if race := v.Script().Trials; race != nil {
			return race
		}
	}
	return nil
}

func checkRecord(chosen []framework.Scenario, repeat int) error {
	if repeat < 2 {
		return usagef("--record needs --repeat: one run says nothing about a rate")
	}
	for _, s := range chosen {
		race := raceOf(s)
		if race == nil {
			return usagef("--record: %s is not probabilistic", s.Incident.Name)
		}
		if _, err := os.Stat(race.File); err != nil {
			return usagef("--record: %w: run it in the project's folder", err)
		}
	}
	return nil
}

// record adds the results of a scenario's affected variants to its file of rates, and
// returns how many runs it added. Runs that were not judged are left out.
func record(s framework.Scenario, r report.Report) (runs int, err error) {
	race := raceOf(s)
	text, err := os.ReadFile(race.File)
	if err != nil {
		return 0, fmt.Errorf("recording rates: %w", err)
	}
	rates, err := framework.ParseRates(text)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", race.File, err)
	}
	for _, v := range r.Variants {
		if v.Role != string(framework.Affected) || v.Repeats == nil {
			continue
		}
		for _, one := range v.Repeats.Runs {
			judged := one.Verdict != string(framework.Unknown) && one.Verdict != string(framework.Vacuous)
			if judged && one.Race != nil {
				rates.Add(one.Race.Accelerator, race.Load, one.Race.Rounds, one.Race.Struck)
				runs++
			}
		}
	}
	if text, err = json.MarshalIndent(rates, "", "  "); err != nil {
		return 0, err
	}
	if err := os.WriteFile(race.File, append(text, '\n'), 0o644); err != nil {
		return 0, fmt.Errorf("recording rates: %w", err)
	}
	return runs, nil
}
