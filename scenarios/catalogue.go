// Package scenarios is the catalogue of incidents that relapse reproduces.
package scenarios

import (
	"github.com/relapse-dev/relapse/framework"
	"github.com/relapse-dev/relapse/scenarios/addednic"
	"github.com/relapse-dev/relapse/scenarios/addressswap"
	"github.com/relapse-dev/relapse/scenarios/bfdreset"
	"github.com/relapse-dev/relapse/scenarios/cordonwithdraws"
	"github.com/relapse-dev/relapse/scenarios/ipvsdeadlock"
	"github.com/relapse-dev/relapse/scenarios/localeverywhere"
	"github.com/relapse-dev/relapse/scenarios/lostpermission"
	"github.com/relapse-dev/relapse/scenarios/lostptr"
	"github.com/relapse-dev/relapse/scenarios/lostselector"
	"github.com/relapse-dev/relapse/scenarios/masqueradedrift"
	"github.com/relapse-dev/relapse/scenarios/nftcrash"
	"github.com/relapse-dev/relapse/scenarios/nodedrain"
	"github.com/relapse-dev/relapse/scenarios/twincidr"
	"github.com/relapse-dev/relapse/scenarios/udpblackhole"
	"github.com/relapse-dev/relapse/scenarios/unpinnedimage"
)

// All lists the scenarios in the order in which they run.
var All = []framework.Scenario{
	nodedrain.Scenario,
	ipvsdeadlock.Scenario,
	unpinnedimage.Scenario,
	addednic.Scenario,
	masqueradedrift.Scenario,
	cordonwithdraws.Scenario,
	udpblackhole.Scenario,
	twincidr.Scenario,
	lostpermission.Scenario,
	lostptr.Scenario,
	lostselector.Scenario,
	nftcrash.Scenario,
	addressswap.Scenario,
	localeverywhere.Scenario,
	bfdreset.Scenario,
}
